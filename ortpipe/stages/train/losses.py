"""What training finds on its way, epoch by epoch."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ortpipe.artifact import under
from ortpipe.stages.train.config import LOSS, EarlyStopConfig

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


@dataclass
class Losses:
    """The losses as they come in, and the metric that is watched."""

    step: list[np.ndarray] = field(default_factory=list)  # one array [steps] per run of the epoch graph
    rate: list[np.ndarray] = field(default_factory=list)  # likewise
    train: list[float] = field(default_factory=list)  # per epoch
    validation: list[float] = field(default_factory=list)  # per epoch, nan where not evaluated; empty without rows
    monitor: dict[str, list[float]] = field(default_factory=dict)  # the metric that is watched, likewise

    def validated(self, found: Mapping[str, float], config: EarlyStopConfig) -> None:
        """Keep what an epoch's validation found, which is nothing where it was not its turn."""
        self.validation.append(found.get(LOSS, np.nan))
        if config.monitor != LOSS:
            self.monitor.setdefault(config.monitor, []).append(found.get(config.monitor, np.nan))

    def watched(self, config: EarlyStopConfig) -> list[float]:
        """Return what is watched, which falls as it improves: of each validation so far, else the training losses."""
        values = self.monitor.get(config.monitor, self.validation)
        return [config.sign * value for value in values if not np.isnan(value)] if self.validation else [*self.train]

    def only(self, epochs: int) -> None:
        """Forget all epochs but the first."""
        for losses in (self.train, self.validation, *self.monitor.values()):
            del losses[epochs:]

    def tensors(self) -> dict[str, np.ndarray]:
        """Return what is known per epoch by name, [epochs] each."""
        return {
            "losses/train": np.array(self.train),
            **({"losses/validation": np.array(self.validation)} if self.validation else {}),
            **{f"monitor/{name}": np.array(values) for name, values in self.monitor.items()},
        }


def still_note(tensors: Mapping[str, np.ndarray]) -> str | None:
    """Return what to say of a training over which the loss did not move, from train's tensors; None where it did.

    Epochs whose losses differ by less than 1e-6 of them count as equal: float32 sums of rows in another order differ
    by less. Of a single epoch there is nothing to compare with but the weights, which must be as they were.
    """
    losses, steps = tensors["losses/train"], len(tensors["losses/step"])
    changes = [
        float(np.abs(after.astype(np.float64) - tensors[f"initial/{name}"]).max(initial=0.0))
        for name, after in under("parameter", tensors).items()
    ]
    change = max(changes, default=0.0)
    if np.ptp(losses) > STILL * np.abs(losses).max() or (len(losses) < 2 and change > 0):
        return None
    weights = f"no weight changed by more than {change:.3g}" if change else "no weight changed"
    return (
        f"the loss did not move: from {losses[0]:.6g} to {losses[-1]:.6g} in {steps} steps, and {weights}; unless it "
        "began at its optimum, look at what the prediction is taken for (convert.source.task, convert.source.scores), "
        "at the learning rate, and at whether a gradient reaches the weights (derive.check=true)"
    )
