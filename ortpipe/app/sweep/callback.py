"""Where Hydra meets runs and sweeps: what it calls as they begin (conf/hydra/default.yaml), and what it writes."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from ortpipe.app.claim import hold
from ortpipe.app.redact import know_config, redacted
from ortpipe.errors import ConfigError
from ortpipe.files import atomic_write

_sweeps = contextlib.ExitStack()  # Hydra begins a sweep deep inside; here it is found again, where it ends


class RefusedStart(BaseException):
    """A start that cannot be, past Hydra, which makes a warning of any Exception in a callback."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class SweepCallback(Callback):
    """Opens the sweep; `sweeping` closes it, also where Hydra calls nothing: after an error.

    A run's folder is claimed here, before Hydra writes into it.
    """

    sweep: str | None = None  # its id; Hydra takes it along to wherever jobs run

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Claim the run's folder."""
        with _refusing():
            HydraConfig.instance().set_config(config)
            know_config(OmegaConf.to_container(config, resolve=False))  # type: ignore[arg-type]
            refuse_secret_name(Path(config.hydra.run.dir))
            hold(Path(config.hydra.run.dir).absolute(), "hydra.run.dir")

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Open it before the sweeper is made."""
        from ortpipe.app.sweep.sweep import OpenSweep

        with _refusing():
            sweep = OpenSweep(config)
            _sweeps.push(lambda kind, error, trace: None if kind is RefusedStart else sweep.end(error))
            self.sweep = sweep.record.id

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Refuse a job whose sweep was killed before it began, and whose folder is another sweep's by now."""
        if self.sweep is not None:
            from ortpipe.app.run.record import RunRecord

            with _refusing():
                current = RunRecord.read(Path(config.hydra.sweep.dir)).id
                if current != self.sweep:
                    raise RuntimeError(f"the sweep {self.sweep} is over; the folder is of {current}")


@contextmanager
def sweeping() -> Iterator[None]:
    """Close the sweep that began inside, if one did, however the inside ends."""
    try:
        with _sweeps:
            yield
    except RefusedStart as refused:
        raise refused.error from None


@contextmanager
def _refusing() -> Iterator[None]:
    """Pass errors on: of an Exception in a callback Hydra would only warn, and go on."""
    try:
        yield
    except Exception as error:
        raise RefusedStart(error) from error


def hide_in_files(hydra: HydraConf) -> None:
    """Take the secrets out of what Hydra wrote: `multirun.yaml`, and the folder that hydra.output_subdir names."""
    folder = Path(hydra.runtime.output_dir)
    refuse_secret_name(folder)
    files = [] if hydra.output_subdir is None else [*(folder / hydra.output_subdir).glob("*.yaml")]
    if hydra.mode is not None and hydra.mode.name == "MULTIRUN":
        files.append(Path(hydra.sweep.dir) / "multirun.yaml")
    for file in files:
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            if (shown := redacted(text)) != text:
                atomic_write(file, shown)


def refuse_secret_name(folder: Path) -> None:
    """Refuse a folder with a secret in its name; one that Hydra has just made, with its empty log, is removed."""
    if redacted(str(folder)) == str(folder):
        return
    fix = "Name the secret's key in hydra.job.config.override_dirname.exclude_keys."
    for file in folder.glob("*.log"):
        if file.stat().st_size == 0:
            file.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    raise ConfigError("The name of a run's folder holds no secret.", got=redacted(str(folder)), fix=fix)
