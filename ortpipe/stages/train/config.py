"""What a config says about train."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ortpipe.errors import ConfigError
from ortpipe.stages.train.optimizer import Optimizer
from ortpipe.stages.train.optimizers import OPTIMIZERS, SGD
from ortpipe.stages.train.schedule import Schedule
from ortpipe.stages.train.schedules import SCHEDULES, Constant


@dataclass(frozen=True)
class EarlyStopConfig:
    """Stop when the monitored loss (validation, else training) has not improved for a while.

    Attributes:
        patience: epochs without an improvement before training stops; null never stops.
        min_delta: how much lower than the best so far a loss must be to count.
    """

    patience: int | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.patience is not None and self.patience < 1:
            raise ConfigError(
                "early_stop.patience must be at least 1.",
                got=self.patience,
                fix="Use null to never stop early.",
            )
        if not 0 <= self.min_delta < float("inf"):
            raise ConfigError("early_stop.min_delta is finite and not negative.", got=self.min_delta, fix="Use 0.")


@dataclass(frozen=True)
class CheckpointConfig:
    """How often the state is kept, so that a run that is killed can continue.

    Attributes:
        epochs: after every so many epochs; null: never by epochs.
        minutes: after the first epoch that ends so many minutes after the last checkpoint; null: never by time.
    """

    epochs: int | None = None
    minutes: float | None = 1.0

    def __post_init__(self) -> None:
        if self.epochs is not None and self.epochs < 1:
            raise ConfigError("train.checkpoint.epochs is at least 1.", got=self.epochs, fix="Use null for none.")
        if self.minutes is not None and not 0 <= self.minutes < float("inf"):
            fix = "Use null for none."
            raise ConfigError("train.checkpoint.minutes is finite and not negative.", got=self.minutes, fix=fix)


@dataclass(frozen=True)
class TrainConfig:
    """How the parameters are fitted.

    Attributes:
        optimizer: a member of the catalogue of optimizers; holds the base learning rate.
        schedule: a member of the catalogue of schedules: base rate and step → rate.
        schedule_per: what the schedule's t counts: `step`, or `epoch` for one rate a pass.
        warmup: as many of them in front of the schedule, over which the rate rises in a line, η·t/(warmup + 1).
        epochs: passes over the training rows, those before a continuation included.
        batch_size: rows per step; the last batch of an epoch may be smaller.
        init: `keep` starts from the model's own weights, `random` from new ones (see `initial.py`).
        shuffle: draw a new order of rows for every epoch.
        seed: of the order and of the random weights.
        early_stop: when to stop before the last epoch; with a validation split the best weights are restored.
        checkpoint: how often the state is kept.
    """

    optimizer: Optimizer = field(default=SGD(), metadata={"catalogue": OPTIMIZERS})
    schedule: Schedule = field(default=Constant(), metadata={"catalogue": SCHEDULES})
    schedule_per: Literal["step", "epoch"] = "step"
    warmup: int = 0
    epochs: int = 50
    batch_size: int = 32
    init: Literal["keep", "random"] = "keep"
    shuffle: bool = True
    seed: int = 0
    early_stop: EarlyStopConfig = EarlyStopConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"train.{name} must be at least 1.",
                    got=getattr(self, name),
                    fix=f"Set train.{name}=1 or more.",
                )
        if self.warmup < 0:
            raise ConfigError("train.warmup is not negative.", got=self.warmup, fix="Set train.warmup=0.")
        if self.seed < 0:
            raise ConfigError("A seed is not negative.", got=self.seed, fix="Set seed=0.")
