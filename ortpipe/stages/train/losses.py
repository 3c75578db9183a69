"""Per-epoch results of training, early stopping, and notes on the losses."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

import numpy as np

from ortpipe.artifact import Arrays, under
from ortpipe.stages.train.config import LOSS, EarlyStopConfig, TrainConfig

HALF = 2  # bytes of a float16 or bfloat16 number
STILL = 1e-6  # losses with a smaller relative difference count as equal


# Logs a line at each phase of training, to profile it; other logs do not have these.
PHASES = logging.getLogger("ortpipe.phases")
PHASES.propagate = False
PHASES.setLevel(logging.WARNING)
Values = TypeVar("Values")


@dataclass(frozen=True)
class Epoch:
    """The results of an epoch; losses are per row."""

    number: int  # counted from 1
    epochs: int
    loss: float  # mean over the epoch's steps, weighted by their rows
    validation: float | None  # None if not evaluated
    rate: float | None  # of the last step; None without rates
    steps: int  # so far
    own_steps: int  # those since this training was started or continued
    metrics: Mapping[str, float] = field(default_factory=dict)  # the monitored metric on the validation rows


@dataclass(frozen=True)
class Compiled:
    """XLA has compiled the epoch graph of a batch size."""

    size: int
    seconds: float

    def __str__(self) -> str:
        return f"compiled for batches of {self.size} rows in {self.seconds:.2f} s"


@dataclass
class Losses:
    """The losses and the monitored metric so far."""

    config: EarlyStopConfig
    step: list[np.ndarray] = field(default_factory=list)  # one array [steps] per run of the epoch graph
    rate: list[np.ndarray] = field(default_factory=list)  # same
    train: list[float] = field(default_factory=list)  # per epoch
    validation: list[float] = field(default_factory=list)  # per epoch, nan if not evaluated; empty without rows
    monitor: list[float] = field(default_factory=list)  # the monitored metric, same; empty if it is the loss

    def __post_init__(self) -> None:
        seen = self.monitor or self.validation
        # The monitored value, for each validation so far, else for each epoch; lower is better.
        self.watched = [self.config.sign * v for v in seen if not np.isnan(v)] if self.validation else [*self.train]

    @classmethod
    def of(cls, config: EarlyStopConfig, tensors: Arrays | None) -> Self:
        """Return the losses and the monitored metric stored in train's tensors."""
        if tensors is None:
            return cls(config)
        train, validation = tensors["losses/train"], tensors.get("losses/validation", np.zeros(0))
        unknown = np.full(0 if config.monitor == LOSS else len(train), np.nan)
        monitor = tensors.get(f"monitor/{config.monitor}", unknown)
        runs = [tensors["losses/step"]], [tensors["losses/rate"]]
        return cls(config, *runs, train.tolist(), validation.tolist(), monitor.tolist())

    def add(self, train: float, metrics: Mapping[str, float] | None) -> None:
        """Append an epoch's loss and validation results: {} if the epoch is not validated, None without rows."""
        self.train.append(train)
        if metrics is None:
            self.watched.append(train)
            return
        self.validation.append(metrics.get(LOSS, np.nan))
        if self.config.monitor != LOSS:
            self.monitor.append(metrics.get(self.config.monitor, np.nan))
        if metrics:
            self.watched.append(self.config.sign * metrics[self.config.monitor])

    def first(self, epochs: int, runs: int = 0) -> Self:
        """Return the losses of the first epochs, which took `runs` runs of the epoch graph."""
        per_epoch = (values[:epochs] for values in (self.train, self.validation, self.monitor))
        return type(self)(self.config, self.step[:runs], self.rate[:runs], *per_epoch)

    def tensors(self) -> dict[str, np.ndarray]:
        """Return all results by name: [steps] or [epochs]."""
        per_step = {"losses/step": self.step, "losses/rate": self.rate}
        monitor = f"monitor/{self.config.monitor}"
        per_epoch = {"losses/train": self.train, "losses/validation": self.validation, monitor: self.monitor}
        return {
            **{name: np.concatenate(runs) for name, runs in per_step.items() if runs},
            **{name: np.array(values) for name, values in per_epoch.items() if values},
        }


def still_note(tensors: Arrays) -> str | None:
    """Return a note if the loss did not change during training, from train's tensors, else None.

    Losses that differ by less than a relative 1e-6 count as equal, because float32 sums in another order differ by
    less. A single epoch has no other loss to compare, so its weights must be unchanged.
    """
    losses, steps = tensors["losses/train"], len(tensors["losses/step"])
    after = under("parameter", tensors)
    moves = (np.abs(a.astype(np.float64) - tensors[f"initial/{name}"]).max(initial=0.0) for name, a in after.items())
    change = float(max(moves, default=0.0))
    if np.ptp(losses) > STILL * np.abs(losses).max() or (len(losses) < 2 and change > 0):
        return None
    weights = f"no weight changed by more than {change:.3g}" if change else "no weight changed"
    return (
        f"the loss did not change: from {losses[0]:.6g} to {losses[-1]:.6g} in {steps} steps, and {weights}; unless it "
        "started at its optimum, check the meaning of the prediction (convert.source.task, convert.source.scores), "
        "the learning rate, and whether gradients reach the weights (derive.check=true)"
    )


def rounding_note(tensors: Arrays, kinds: Mapping[str, np.dtype]) -> str | None:
    """Return a note if a float16 or bfloat16 model rounds away the result of training, else None.

    Args:
        tensors: train's tensors, with float32 weights.
        kinds: parameter → its type in the model.
    """
    names = " and ".join(sorted({kind.name for kind in kinds.values() if kind.itemsize == HALF}))
    moved = lost = 0
    for name, after in under("parameter", tensors).items() if names else ():
        before, kind = tensors[f"initial/{name}"], kinds.get(name, after.dtype)
        change = after != before
        moved += int(change.sum())
        lost += int((change & (after.astype(kind) == before.astype(kind))).sum())
    if not names or 2 * lost <= moved:
        return None
    return (
        f"the model's {names} rounds {lost} of {moved} trained weights back to their initial values: train "
        "longer or at a higher rate, or write the model in float32 (convert.source.dtype=float32)"
    )


class EarlyStop(Generic[Values]):
    """Checks the monitored values (`Losses.watched`) after each epoch, with the epoch's carried values."""

    def __init__(self, config: EarlyStopConfig, values: Values) -> None:
        self.over = False  # whether patience is exhausted
        self.best, self.best_values = -1, values  # the index of the lowest value, and the carried values there
        self._config, self._lowest, self._seen = config, np.inf, 0

    def __call__(self, watched: Sequence[float], values: Values) -> None:
        """Process all monitored values so far; carried values are only known for the last one."""
        for place in range(self._seen, len(watched)):
            if watched[place] < self._lowest - self._config.min_delta:
                self._lowest, self.best, self.best_values = watched[place], place, values
        self._seen, patience = len(watched), self._config.patience
        self.over = patience is not None and self._seen - 1 - self.best >= patience


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


def note(epoch_kept: Kept, config: TrainConfig, *, validated: bool, weighted: bool) -> str:
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
