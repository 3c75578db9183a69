"""Per-epoch training results."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from ortpipe.artifact import Arrays, under
from ortpipe.stages.train.config import LOSS, EarlyStopConfig

HALF = 2  # bytes of a float16 or bfloat16 number
STILL = 1e-6  # losses with a smaller relative difference count as equal


# Logs a line at each phase of training, to profile it; other logs do not have these.
PHASES = logging.getLogger("ortpipe.phases")
PHASES.propagate = False
PHASES.setLevel(logging.WARNING)


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
