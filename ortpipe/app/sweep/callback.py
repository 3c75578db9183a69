"""Hydra's callbacks at the start of runs and sweeps (conf/hydra/default.yaml)."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from ortpipe.app.claim import hold, output_folder
from ortpipe.app.redact import know_config, redacted
from ortpipe.errors import ConfigError

_sweeps = contextlib.ExitStack()  # a sweep begins in a callback of Hydra's and is closed by `sweeping`


class RefusedStart(BaseException):
    """An error at the start. Not an Exception: Hydra turns any Exception in a callback into a warning."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class SweepCallback(Callback):
    """Opens the sweep; `sweeping` closes it, also after an error, when Hydra calls nothing.

    A run's folder is locked here, before Hydra writes into it.
    """

    sweep: str | None = None  # its id, which Hydra sends to the processes of jobs

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Lock the run's folder."""
        with _passing_errors():
            HydraConfig.instance().set_config(config)
            refuse_output_subdir(config)
            know_config(OmegaConf.to_container(config, resolve=False))  # type: ignore[arg-type]
            reject_secret_name(Path(config.hydra.run.dir))
            hold(output_folder(config.paths, config.hydra.run.dir, "hydra.run.dir"), "hydra.run.dir")

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Open the sweep before the sweeper is created."""
        from ortpipe.app.sweep.sweep import OpenSweep

        with _passing_errors():
            refuse_output_subdir(config)
            sweep = OpenSweep(config)
            _sweeps.push(lambda kind, error, trace: None if kind is RefusedStart else sweep.end(error))
            self.sweep = sweep.record.id

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Reject a job if its sweep was killed and another sweep uses the folder now."""
        if self.sweep is not None:
            from ortpipe.app.run.record import RunRecord

            with _passing_errors():
                current = RunRecord.read(Path(config.hydra.runtime.cwd, config.hydra.sweep.dir)).id
                if current != self.sweep:
                    raise RuntimeError(f"the sweep {self.sweep} has ended; its folder is now that of {current}")


@contextmanager
def sweeping() -> Iterator[None]:
    """Close the sweep that began in the block, if any, however the block ends."""
    try:
        with _sweeps:
            yield
    except RefusedStart as start_error:
        raise start_error.error from None


@contextmanager
def _passing_errors() -> Iterator[None]:
    """Raise exceptions as a BaseException, which Hydra does not turn into a warning as it does in a callback."""
    try:
        yield
    except Exception as error:
        raise RefusedStart(error) from error


def refuse_output_subdir(config: DictConfig) -> None:
    """Reject a folder for Hydra's own files, into which it writes secrets."""
    if config.hydra.output_subdir is not None:
        rule, fix = "{key} must be null: Hydra's files hold secrets.", "Remove it: config.yaml holds the run's config."
        raise ConfigError(rule, key="hydra.output_subdir", got=config.hydra.output_subdir, fix=fix)


def reject_secret_name(folder: Path) -> None:
    """Reject a folder with a secret in its name; one that Hydra has just created, with an empty log, is removed."""
    if redacted(str(folder)) == str(folder):
        return
    fix = "Name the secret's key in hydra.job.config.override_dirname.exclude_keys."
    for file in folder.glob("*.log"):
        if file.stat().st_size == 0:
            file.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    raise ConfigError("The name of a run's folder must hold no secret.", got=redacted(str(folder)), fix=fix)
