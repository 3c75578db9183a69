"""The epoch whose weights early stopping kept, and the loss of the trained weights."""

from dataclasses import dataclass

import numpy as np

from ortpipe.artifact import Arrays
from ortpipe.stages.train.config import LOSS, EarlyStopConfig, TrainConfig
from ortpipe.stages.train.early_stop import EarlyStop


@dataclass(frozen=True)
class Kept:
    """The epoch whose weights early stopping kept."""

    epoch: int  # its number, from 1
    value: float  # the monitored value of that epoch
    epochs: int  # the number of epochs that ran
    over: bool  # whether patience was exhausted


def kept_epoch(tensors: Arrays, config: EarlyStopConfig) -> Kept | None:
    """Return the epoch whose weights a training with these losses kept; None without patience."""
    if config.patience is None:
        return None
    train, validation = tensors["losses/train"], tensors.get("losses/validation")
    watched = train if validation is None else tensors.get(f"monitor/{config.monitor}", validation)
    [evaluated], stop = np.nonzero(~np.isnan(watched)), EarlyStop(config, None)
    stop((config.sign * watched[evaluated]).tolist(), None)
    epoch = len(train) if validation is None else int(evaluated[stop.best]) + 1
    return Kept(epoch, float(watched[epoch - 1]), len(train), stop.over)


def kept_note(epoch_kept: Kept, config: TrainConfig, *, validated: bool, weighted: bool) -> str:
    """Return the outcome of early stopping as a sentence; mention validation rows and row weights."""
    stop = config.early_stop
    kind = f"{stop.monitor}{' (weighted)' if weighted else ''}" if stop.monitor != LOSS else LOSS
    watched, turns = (f"validation {kind}", "validation") if validated else ("training loss", "epoch")
    much = f" by more than {stop.min_delta:g}" if stop.min_delta else ""
    if epoch_kept.over and epoch_kept.epochs < config.epochs:
        turns = f"{stop.patience} {turns}{'s' if stop.patience != 1 else ''}"
        outcome = (
            f"stopped after epoch {epoch_kept.epochs} of {config.epochs}: {watched} did not improve{much} for {turns}"
        )
    else:
        outcome = f"not stopped early: {epoch_kept.epochs} of {config.epochs} epochs ran"
    which = f"kept epoch {epoch_kept.epoch}, {watched} {epoch_kept.value:.4g}"
    return (
        f"{outcome}; {which}"
        if validated
        else f"{outcome}; {which} (the last: without validation rows none is restored)"
    )


def trained_loss(tensors: Arrays, config: EarlyStopConfig) -> float:
    """Return the loss of the trained weights: on validation rows if there are any, else in training.

    It is the last epoch's loss or, with early stopping, that of the epoch whose weights were kept.
    """
    losses, epoch_kept = tensors.get("losses/validation", tensors["losses/train"]), kept_epoch(tensors, config)
    return float(losses[-1 if epoch_kept is None else epoch_kept.epoch - 1])
