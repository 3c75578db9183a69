"""The settings of train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from ortpipe.doors import later
from ortpipe.errors import ConfigError
from ortpipe.metrics import METRICS
from ortpipe.settings import Config, Count, Fix, NotNegative, Positive, Seed, Share, Times, one_of
from ortpipe.stages.train.optimizers import OPTIMIZERS, Optimizer
from ortpipe.stages.train.schedules import SCHEDULES, Schedule

if TYPE_CHECKING:
    from ortpipe.parallel import ParallelConfig
else:
    later(__name__)

VERSION = 13  # raised whenever the stage's results change
LOSS = "loss"  # the default monitor
Decay = Annotated[NotNegative, Fix("To keep a parameter as it is, name it in {@derive.frozen}.")]


@dataclass(frozen=True)
class EarlyStopConfig(Config):
    """Stop when the monitored value has not improved for a while.

    Attributes:
        patience: epochs without improvement (with validation rows: validations) before training stops; null: never.
        min_delta: the least improvement over the best value so far that counts.
        monitor: the value monitored here and by schedules: `loss` (validation, else training), or a validation metric.
    """

    patience: Count | None = None
    min_delta: NotNegative = 0.0
    monitor: Annotated[str, one_of("metric", METRICS, LOSS)] = LOSS

    @property
    def sign(self) -> float:
        """−1 if greater is better: the monitored value times the sign falls as it improves."""
        return -1.0 if self.monitor != LOSS and METRICS[self.monitor].greater_is_better else 1.0


@dataclass(frozen=True)
class CheckpointConfig(Config):
    """How often to write a checkpoint, from which a killed run can continue.

    Attributes:
        epochs: checkpoint after every so many epochs; null: never by epochs.
        minutes: checkpoint after the first epoch that ends so many minutes after the last one; null: never by time.
    """

    epochs: Count | None = None
    minutes: NotNegative | None = 1.0


@dataclass(frozen=True)
class ClipConfig(Config):
    """Gradient clipping; entries are clipped first, then the norm.

    Attributes:
        value: the largest |gᵢ|; null: unlimited.
        norm: the largest ‖g‖₂ of all parameters' gradients as one vector; null: unlimited.
    """

    value: Positive | None = None
    norm: Positive | None = None


@dataclass(frozen=True)
class TrainConfig(Config):
    """How the parameters are trained.

    Attributes:
        optimizer: a member of the catalogue of optimizers; holds the base learning rate. `lbfgs` uses full batches.
        schedule: a member of the catalogue of schedules: base rate and step → rate.
        schedule_per: the unit of the schedule's t: `step`, or `epoch` for one rate per epoch.
        warmup: steps or epochs before the schedule, during which the rate rises linearly, η·t/(warmup + 1).
        epochs: passes over the training rows, including those before a continuation.
        batch_size: rows per step; the last batch of an epoch may be smaller.
        drop_last: drop the smaller last batch.
        init: `keep` starts from the model's weights, `random` from new ones (see `random_parameters`).
        shuffle: draw a new order of rows for every epoch.
        seed: the seed of the order and of random weights.
        clip: bounds of the gradient.
        accumulate: batches averaged for one update; an epoch's remaining batches form one more, a partial one another.
        weight_decay: λ of a decoupled decay, θ ← (1 − η·λ)·θ, in addition to the optimizer's own (Loshchilov and
            Hutter, 2019): a number, or one for each parameter name or glob.
        factors: learning-rate multipliers by parameter name or glob; the last match counts.
        average: d of the exponential moving average (EMA) of the weights, a ← d·a + (1 − d)·θ after every step,
            starting at the initial weights. Validation and the result use the average; null: no average.
        loss_scale: the factor of a half-precision backward pass; null: 1024 for float16, 1 for bfloat16.
        validate_every: epochs between two evaluations of the validation rows; the last epoch is always evaluated.
        early_stop: when to stop before the last epoch; with validation rows, the best weights are restored.
        parallel: how training is split over workers; null: one process trains.
        states: epochs before the last whose results the store also keeps: a list, or a number for every so many.
        checkpoint: how often to write a checkpoint.
    """

    optimizer: Annotated[Optimizer, OPTIMIZERS] = OPTIMIZERS.default("sgd")
    schedule: Annotated[Schedule, SCHEDULES] = SCHEDULES.default("constant")
    schedule_per: Literal["step", "epoch"] = "step"
    warmup: Times = 0
    epochs: Count = 50
    batch_size: Count = 32
    drop_last: bool = False
    init: Literal["keep", "random"] = "keep"
    shuffle: bool = True
    seed: Seed = 0
    clip: ClipConfig = ClipConfig()
    accumulate: Count = 1
    weight_decay: Decay | Mapping[str, Decay] = 0.0
    factors: Mapping[str, Decay] = field(default_factory=dict)
    average: Share | None = None
    loss_scale: Positive | None = None
    validate_every: Count = 1
    early_stop: EarlyStopConfig = EarlyStopConfig()
    parallel: ParallelConfig | None = None
    states: Count | tuple[Count, ...] | None = field(default=None, metadata={"identity": False})
    checkpoint: CheckpointConfig = field(default=CheckpointConfig(), metadata={"identity": False})

    def __post_init__(self) -> None:
        if self.parallel is not None and self.accumulate > 1:
            rule = "{key} must be 1 with workers, which already add up the gradients of slices."
            fix = "Set {at}accumulate=1 and a larger {at}batch_size."
            raise ConfigError(rule, key="accumulate", got=self.accumulate, fix=fix)
        if changed := [key for key in self.optimizer.decides if getattr(self, key) != _DEFAULTS[key]]:
            keys = ", ".join(f"{{at}}{key}" for key in changed)
            raise ConfigError(
                f"{self.optimizer.solver} uses all rows in every step and chooses its own step sizes.",
                key="optimizer",
                got=", ".join(changed),
                fix=f"Leave {keys} at the default, or choose another {{@train/optimizer}}.",
            )


_DEFAULTS = vars(TrainConfig())
