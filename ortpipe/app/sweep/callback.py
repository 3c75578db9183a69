"""What Hydra calls where a run, a sweep or its job begins (conf/hydra/default.yaml), and what closes a sweep."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from ortpipe.app.claim import hold
from ortpipe.app.redact import know_config
from ortpipe.app.run.hydra_files import refuse_secret_name

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
        from ortpipe.app.sweep.sweep import begin

        with _refusing():
            sweep = begin(config)
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
