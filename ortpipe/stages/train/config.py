"""What a config says about train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ortpipe.errors import ConfigError
from ortpipe.metrics import check_known, greater_is_better
from ortpipe.settings import Config
from ortpipe.stages.train.checks import check_decay
from ortpipe.stages.train.optimizer import Optimizer
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.optimizers.lbfgs import LBFGS
from ortpipe.stages.train.optimizers.sgd import SGD
from ortpipe.stages.train.schedule import Schedule
from ortpipe.stages.train.schedules import SCHEDULES
from ortpipe.stages.train.schedules.constant import Constant

LOSS = "loss"  # what is watched unless a metric is


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

    patience: int | None = None
    min_delta: float = 0.0
    monitor: str = LOSS

    @property
    def sign(self) -> float:
        """−1 where greater is better: what is watched times this falls as it improves."""
        return -1.0 if greater_is_better(self.monitor) else 1.0

    def __post_init__(self) -> None:
        check_known(self.monitor, "train.early_stop.monitor", besides=(LOSS,))
        if self.patience is not None and self.patience < 1:
            raise ConfigError(
                "early_stop.patience must be at least 1.",
                got=self.patience,
                fix="Use null to never stop early.",
            )
        if not 0 <= self.min_delta < float("inf"):
            raise ConfigError("early_stop.min_delta is finite and not negative.", got=self.min_delta, fix="Use 0.")


@dataclass(frozen=True)
class CheckpointConfig(Config):
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
class ClipConfig(Config):
    """How large gradients may be; entries are clipped first, then the whole.

    Attributes:
        value: the largest |gᵢ|; null: any.
        norm: the largest ‖g‖₂ of all parameters' gradients as one vector; null: any.
    """

    value: float | None = None
    norm: float | None = None

    def __post_init__(self) -> None:
        for name, bound in vars(self).items():
            if bound is not None and not 0 < bound < float("inf"):
                fix = f"Use null for no bound, or train.clip.{name}=1.0."
                raise ConfigError(f"train.clip.{name} is positive and finite.", got=bound, fix=fix)


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
        init: `keep` starts from the model's own weights, `random` from new ones (see `initial.py`).
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

    optimizer: Optimizer | LBFGS = field(default=SGD(), metadata={"catalogue": OPTIMIZERS})
    schedule: Schedule = field(default=Constant(), metadata={"catalogue": SCHEDULES})
    schedule_per: Literal["step", "epoch"] = "step"
    warmup: int = 0
    epochs: int = 50
    batch_size: int = 32
    drop_last: bool = False
    init: Literal["keep", "random"] = "keep"
    shuffle: bool = True
    seed: int = 0
    clip: ClipConfig = ClipConfig()
    accumulate: int = 1
    weight_decay: float | Mapping[str, float] = 0.0
    factors: Mapping[str, float] = field(default_factory=dict)
    average: float | None = None
    loss_scale: float | None = None
    validate_every: int = 1
    early_stop: EarlyStopConfig = EarlyStopConfig()
    checkpoint: CheckpointConfig = field(default=CheckpointConfig(), metadata={"identity": False})

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "validate_every"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"train.{name} must be at least 1.",
                    got=getattr(self, name),
                    fix=f"Set train.{name}=1 or more.",
                )
        if isinstance(self.optimizer, LBFGS):
            self._refuse_what_lbfgs_does_not_do()
        if self.warmup < 0:
            raise ConfigError("train.warmup is not negative.", got=self.warmup, fix="Set train.warmup=0.")
        decays = self.weight_decay if isinstance(self.weight_decay, Mapping) else {"*": self.weight_decay}
        for key, numbers in (("weight_decay", decays), ("factors", self.factors)):
            for pattern, number in numbers.items():
                if not 0 <= number < float("inf"):
                    fix = "To keep a parameter as it is, name it in derive.frozen."
                    rule = f"train.{key} is finite and not negative."
                    raise ConfigError(rule, got=f"{pattern}: {number}", fix=fix)
        if self.average is not None:
            check_decay("average", self.average, None)
        if self.loss_scale is not None and not 0 < self.loss_scale < float("inf"):
            fix = "Use null for the type's own."
            raise ConfigError("train.loss_scale is positive and finite.", got=self.loss_scale, fix=fix)
        if self.seed < 0:
            raise ConfigError("A seed is not negative.", got=self.seed, fix="Set seed=0.")

    @property
    def stepwise(self) -> Optimizer:
        """The optimizer, where it is one that writes a step as graph nodes."""
        assert not isinstance(self.optimizer, LBFGS)
        return self.optimizer

    def _refuse_what_lbfgs_does_not_do(self) -> None:
        shaped = ("schedule", "warmup", "accumulate", "clip", "weight_decay", "factors", "average")
        changed = [f"train.{key}" for key in shaped if getattr(self, key) != getattr(TrainConfig(), key)]
        if changed:
            raise ConfigError(
                "lbfgs finds its steps itself, on all rows.",
                got=", ".join(changed),
                fix="Leave them as they are, or choose another train/optimizer.",
            )
