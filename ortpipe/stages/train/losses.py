"""What training finds on its way, epoch by epoch."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from ortpipe.artifact import Arrays, under
from ortpipe.stages.train.config import LOSS, EarlyStopConfig

HALF = 2  # bytes of a number
STILL = 1e-6  # relative difference of losses that counts as none


# A line at each change of what training does, for whoever measures where its time goes; no other log shows them.
PHASES = logging.getLogger("ortpipe.phases")
PHASES.propagate = False
PHASES.setLevel(logging.WARNING)


@dataclass(frozen=True)
class Epoch:
    """What is known after an epoch; losses are per row."""

    number: int  # counted from 1
    epochs: int
    loss: float  # mean over the epoch's steps, weighted by their rows
    validation: float | None  # None where not evaluated
    rate: float | None  # of the last step; None where there is none
    steps: int  # so far
    own_steps: int  # of them, since this training was begun or continued
    metrics: Mapping[str, float] = field(default_factory=dict)  # that is watched, of the validation rows


@dataclass(frozen=True)
class Compiled:
    """XLA has compiled the epoch graph of a batch size."""

    size: int
    seconds: float

    def __str__(self) -> str:
        return f"compiled for batches of {self.size} rows in {self.seconds:.2f} s"


@dataclass
class Losses:
    """The losses as they come in, and the metric that is watched."""

    config: EarlyStopConfig
    step: list[np.ndarray] = field(default_factory=list)  # one array [steps] per run of the epoch graph
    rate: list[np.ndarray] = field(default_factory=list)  # likewise
    train: list[float] = field(default_factory=list)  # per epoch
    validation: list[float] = field(default_factory=list)  # per epoch, nan where not evaluated; empty without rows
    monitor: list[float] = field(default_factory=list)  # the metric that is watched, likewise; empty for the loss

    def __post_init__(self) -> None:
        seen = self.monitor or self.validation
        # What is watched, of each validation so far, else of each epoch: it falls as it improves.
        self.watched = [self.config.sign * v for v in seen if not np.isnan(v)] if self.validation else [*self.train]

    @classmethod
    def of(cls, config: EarlyStopConfig, tensors: Arrays | None) -> Self:
        """Return those that train's tensors hold, and what they know of the metric that is watched."""
        if tensors is None:
            return cls(config)
        train, validation = tensors["losses/train"], tensors.get("losses/validation", np.zeros(0))
        unknown = np.full(0 if config.monitor == LOSS else len(train), np.nan)
        monitor = tensors.get(f"monitor/{config.monitor}", unknown)
        runs = [tensors["losses/step"]], [tensors["losses/rate"]]
        return cls(config, *runs, train.tolist(), validation.tolist(), monitor.tolist())

    def add(self, train: float, metrics: Mapping[str, float] | None) -> None:
        """Take an epoch's loss and what its validation found: nothing where it was not its turn, None without rows."""
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
        """Return those of the first epochs, which took so many runs of the epoch graph."""
        per_epoch = (values[:epochs] for values in (self.train, self.validation, self.monitor))
        return type(self)(self.config, self.step[:runs], self.rate[:runs], *per_epoch)

    def tensors(self) -> dict[str, np.ndarray]:
        """Return all that is known by name: [steps] or [epochs]."""
        per_step = {"losses/step": self.step, "losses/rate": self.rate}
        monitor = f"monitor/{self.config.monitor}"
        per_epoch = {"losses/train": self.train, "losses/validation": self.validation, monitor: self.monitor}
        return {
            **{name: np.concatenate(runs) for name, runs in per_step.items() if runs},
            **{name: np.array(values) for name, values in per_epoch.items() if values},
        }


def still_note(tensors: Arrays) -> str | None:
    """Return what to say of a training over which the loss did not move, from train's tensors; None where it did.

    Epochs whose losses differ by less than 1e-6 of them count as equal: float32 sums of rows in another order differ
    by less. Of a single epoch there is nothing to compare with but the weights, which must be as they were.
    """
    losses, steps = tensors["losses/train"], len(tensors["losses/step"])
    after = under("parameter", tensors)
    moves = (np.abs(a.astype(np.float64) - tensors[f"initial/{name}"]).max(initial=0.0) for name, a in after.items())
    change = float(max(moves, default=0.0))
    if np.ptp(losses) > STILL * np.abs(losses).max() or (len(losses) < 2 and change > 0):
        return None
    weights = f"no weight changed by more than {change:.3g}" if change else "no weight changed"
    return (
        f"the loss did not move: from {losses[0]:.6g} to {losses[-1]:.6g} in {steps} steps, and {weights}; unless it "
        "began at its optimum, look at what the prediction is taken for (convert.source.task, convert.source.scores), "
        "at the learning rate, and at whether a gradient reaches the weights (derive.check=true)"
    )


def rounding_note(tensors: Arrays, kinds: Mapping[str, np.dtype]) -> str | None:
    """Return what to say of a training whose result is lost in the types of the model, which is written in halves.

    Args:
        tensors: train's, in which weights are float32.
        kinds: parameter → the type that the model has it in.
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
        f"{lost} of {moved} weights that training moved are as before in the model, whose {names} rounds them back: "
        "train for longer or at a higher rate, or write the model in float32 (convert.source.dtype=float32)"
    )
