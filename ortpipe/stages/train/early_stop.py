"""When to stop before the last epoch, and the best weights so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ortpipe.stages.train.config import LOSS, EarlyStopConfig, TrainConfig


class EarlyStop:
    """Watches the monitored loss.

    Attributes:
        over: the loss has not improved as many times as the patience allows.
        best_values: the carried values where it was lowest.
    """

    def __init__(self, config: EarlyStopConfig, values: Mapping[str, np.ndarray]) -> None:
        self.over, self.best_values = False, values
        self._config, self._best, self._waited, self._seen = config, np.inf, 0, 0

    def __call__(self, monitored: float, values: Mapping[str, np.ndarray]) -> None:
        """Take the next loss and the values that it is of."""
        self._seen += 1
        if monitored < self._best - self._config.min_delta:
            self._best, self._waited, self.best_values = monitored, 0, values
        else:
            self._waited += 1
        self.over = self._config.patience is not None and self._waited >= self._config.patience

    def catch_up(self, monitored: Sequence[float], values: Mapping[str, np.ndarray]) -> None:
        """Take the losses that it has not seen, of which only the last one's values are known."""
        for loss in monitored[self._seen :]:
            self(loss, values)


@dataclass(frozen=True)
class Kept:
    """The epoch whose weights a training with early stopping kept.

    Attributes:
        epoch: its number, from 1.
        value: what is watched had this value there.
        epochs: that ran.
        over: what is watched had not improved as many times as the patience allows.
    """

    epoch: int
    value: float
    epochs: int
    over: bool


def kept_epoch(tensors: Mapping[str, np.ndarray], config: EarlyStopConfig) -> Kept | None:
    """Return which epoch's weights a training with these losses kept; None where no patience was set."""
    if config.patience is None:
        return None
    train, validation = tensors["losses/train"], tensors.get("losses/validation")
    watched = train if validation is None else tensors.get(f"monitor/{config.monitor}", validation)
    stop = EarlyStop(config, {})
    for epoch, value in enumerate(watched, start=1):
        if not np.isnan(value):
            stop(config.sign * float(value), {"epoch": np.array(epoch)})
    epoch = len(train) if validation is None else int(stop.best_values["epoch"])
    return Kept(epoch, float(watched[epoch - 1]), len(train), stop.over)


def note(kept: Kept, config: TrainConfig, *, validated: bool, weighted: bool) -> str:
    """Return what early stopping did, for a person.

    Args:
        kept: what it did.
        config: of the training.
        validated: there were validation rows.
        weighted: the metric that is watched counts weights of rows.
    """
    stop = config.early_stop
    kind = f"{stop.monitor}{' (weighted)' if weighted else ''}" if stop.monitor != LOSS else LOSS
    watched, turns = (f"validation {kind}", "validation") if validated else ("training loss", "epoch")
    much = f" by more than {stop.min_delta:g}" if stop.min_delta else ""
    if kept.over and kept.epochs < config.epochs:
        turns = f"{stop.patience} {turns}{'s' if stop.patience != 1 else ''}"
        said = f"stopped after epoch {kept.epochs} of {config.epochs}: {watched} did not improve{much} for {turns}"
    else:
        said = f"not stopped early: {kept.epochs} of {config.epochs} epochs ran"
    which = f"kept epoch {kept.epoch}, {watched} {kept.value:.4g}"
    return f"{said}; {which}" if validated else f"{said}; {which} (the last: without validation rows none is restored)"


def trained_loss(tensors: Mapping[str, np.ndarray], config: EarlyStopConfig) -> float:
    """Return the loss of the weights that training gave: of the validation rows where there are any, else of training.

    That is the last epoch's, or with early stopping that of the epoch whose weights were kept.
    """
    losses, kept = tensors.get("losses/validation", tensors["losses/train"]), kept_epoch(tensors, config)
    return float(losses[-1 if kept is None else kept.epoch - 1])
