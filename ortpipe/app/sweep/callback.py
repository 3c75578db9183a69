"""What Hydra calls where a run, a sweep or its job begins (conf/hydra/default.yaml)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import OmegaConf

if TYPE_CHECKING:
    from omegaconf import DictConfig


class Sweep(Callback):
    """Opens the sweep; `ortpipe.app.sweep.sweep.sweeping` closes it, also where Hydra calls nothing: after an error.

    A run's folder is claimed here, before Hydra writes into it.
    """

    sweep: str | None = None  # its id; Hydra takes it along to wherever jobs run

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Claim the run's folder."""
        from ortpipe.app.claim import hold
        from ortpipe.app.redact import know_config
        from ortpipe.app.run.hydra_files import refuse_secret_name

        with _refusing():
            HydraConfig.instance().set_config(config)
            know_config(OmegaConf.to_container(config, resolve=False))  # type: ignore[arg-type]
            refuse_secret_name(Path(config.hydra.run.dir))
            hold(Path(config.hydra.run.dir).absolute(), "hydra.run.dir")

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Open it before the sweeper is made."""
        from ortpipe.app.sweep.sweep import begin

        with _refusing():
            self.sweep = begin(config)

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Refuse a job whose sweep was killed before it began, and whose folder is another sweep's by now."""
        from ortpipe.app.sweep.status import read_ground

        if self.sweep is not None:
            with _refusing():
                now = read_ground(Path(config.hydra.sweep.dir)).sweep
                if now != self.sweep:
                    raise RuntimeError(f"the sweep {self.sweep} is over; the folder is of {now}")


@contextmanager
def _refusing() -> Iterator[None]:
    """Pass errors on: of an Exception in a callback Hydra would only warn, and go on."""
    from ortpipe.app.sweep.sweep import Refused

    try:
        yield
    except Exception as error:
        raise Refused(error) from error
