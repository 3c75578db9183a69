"""What Hydra calls where a sweep begins (conf/hydra/default.yaml)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hydra.experimental.callback import Callback

if TYPE_CHECKING:
    from omegaconf import DictConfig


class Sweep(Callback):
    """Opens the sweep; `ortpipe.app.sweep.sweep.sweeping` closes it, also where Hydra calls nothing: after an error."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Open it before the sweeper is made."""
        from ortpipe.app.sweep.sweep import Refused, begin

        try:
            begin(config)
        except Exception as error:
            raise Refused(error) from error  # of an Exception Hydra would only warn, and go on
