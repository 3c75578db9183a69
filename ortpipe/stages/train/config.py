"""What a config says about train."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from ortpipe.errors import ConfigError
from ortpipe.metrics import METRICS, greater_is_better
from ortpipe.settings import Config, Count, Fix, NotNegative, Positive, Seed, Share, Times, one_of
from ortpipe.stages.train.optimizers import OPTIMIZERS, Optimizer
from ortpipe.stages.train.schedules import SCHEDULES, Schedule

LOSS = "loss"  # what is watched unless a metric is
Decay = Annotated[NotNegative, Fix("To keep a parameter as it is, name it in {@derive.frozen}.")]


@dataclass(frozen=True)
class EarlyStopConfig(Config):
    """Stop when what is watched has not improved for a while.

    Attributes:
        patience: epochs without an improvement before training stops (validations, where there are validation rows);
            null never stops.
        min_delta: by how much it must be better than the best so far to count.
        monitor: what this and the schedules that watch something look at: `loss` (of validation, else of training), or
            a metric of the catalogue, computed on the validation rows.
    """

    patience: Count | None = None
    min_delta: NotNegative = 0.0
    monitor: Annotated[str, one_of("metric", METRICS, LOSS)] = LOSS

    @property
    def sign(self) -> float:
        """−1 where greater is better: what is watched times this falls as it improves."""
        return -1.0 if greater_is_better(self.monitor) else 1.0


@dataclass(frozen=True)
class CheckpointConfig(Config):
    """How often the state is kept, so that a run that is killed can continue.

    Attributes:
        epochs: after every so many epochs; null: never by epochs.
        minutes: after the first epoch that ends so many minutes after the last checkpoint; null: never by time.
    """

    epochs: Count | None = None
    minutes: NotNegative | None = 1.0


@dataclass(frozen=True)
class ClipConfig(Config):
    """How large gradients may be; entries are clipped first, then the whole.

    Attributes:
        value: the largest |gᵢ|; null: any.
        norm: the largest ‖g‖₂ of all parameters' gradients as one vector; null: any.
    """

    value: Positive | None = None
    norm: Positive | None = None


@dataclass(frozen=True)
class TrainConfig(Config):
    """How the parameters are fitted.

    Attributes:
        optimizer: a member of the catalogue of optimizers; holds the base learning rate. `lbfgs` takes whole batches.
        schedule: a member of the catalogue of schedules: base rate and step → rate.
        schedule_per: what the schedule's t counts: `step`, or `epoch` for one rate a pass.
        warmup: as many of them in front of the schedule, over which the rate rises in a line, η·t/(warmup + 1).
        epochs: passes over the training rows, those before a continuation included.
        batch_size: rows per step; the last batch of an epoch may be smaller.
        drop_last: leave that smaller one out.
        init: `keep` starts from the model's own weights, `random` from new ones (see `random_parameters`).
        shuffle: draw a new order of rows for every epoch.
        seed: of the order and of the random weights.
        clip: bounds of the gradient.
        accumulate: batches whose gradients (and losses) are averaged for one update; what an epoch leaves over of them
            is one update too, and its partial batch another.
        weight_decay: λ of a decoupled decay, θ ← (1 − η·λ)·θ, beside any that the optimizer has of its own (Loshchilov
            and Hutter, 2019): a number, or one for each parameter name or glob.
        factors: what the learning rate is multiplied by, for each parameter name or glob; the last that matches counts.
        average: d of the exponential moving average of the weights, a ← d·a + (1 − d)·θ after every step, from the
            first weights on. The averages are validated and are what training gives; null: none.
        loss_scale: what the loss is multiplied by for the backward pass of a model of halves, whose parameters are
            trained in float32; null: 1024 for float16, 1 for bfloat16.
        validate_every: epochs from one evaluation of the validation rows to the next; the last epoch always has one.
        early_stop: when to stop before the last epoch; with a validation split the best weights are restored.
        checkpoint: how often the state is kept.
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
    checkpoint: CheckpointConfig = field(default=CheckpointConfig(), metadata={"identity": False})

    def __post_init__(self) -> None:
        if changed := [key for key in self.optimizer.decides if getattr(self, key) != _DEFAULTS[key]]:
            keys = ", ".join(f"{{at}}{key}" for key in changed)
            raise ConfigError(
                f"{self.optimizer.solver} finds its steps itself, on all rows.",
                key="optimizer",
                got=", ".join(changed),
                fix=f"Leave {keys} at the default, or choose another {{@train/optimizer}}.",
            )


_DEFAULTS = vars(TrainConfig())
