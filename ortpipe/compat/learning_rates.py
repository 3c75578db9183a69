"""The learning rates that onnxcustom's classes take: a schedule of the train stage, and its optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np

from ortpipe.compat.parameters import Parameters, by_name
from ortpipe.errors import ConfigError, TrainError, nearest
from ortpipe.stages.train.optimizers import OPTIMIZERS, Optimizer
from ortpipe.stages.train.optimizers.sgd import SGD
from ortpipe.stages.train.schedules import SCHEDULES, Schedule

SCHEDULE_NAMES = {  # onnxcustom's name → the catalogue's
    "constant": "constant",
    "optimal": "optimal",
    "invscaling": "inverse_scaling",
    "adaptive": "adaptive",
}


class LearningRateSGD(Parameters):
    """Plain gradient descent, θ ← θ − ηₜ·g, whose rate has one value a pass over the rows.

    `constant` is ηₜ = η₀; `invscaling` η₀ / tᵖ; `optimal` η₀·t₀ / (t₀ + t − 1) with t₀ = α^(−3/4); `adaptive` η₀ / 5ᵏ
    after k times five passes without progress of the training loss (1e-3 per row). They are scikit-learn's
    `SGDRegressor(learning_rate=…)`, but t counts passes and `optimal` starts at η₀.
    The original took another t₀ (of a loss with a wrong derivative), gave the second pass of `invscaling` the first
    one's rate again, and rejected `adaptive`.

    Args:
        eta0: η₀, the rate of the first pass.
        alpha: α of `optimal`.
        power_t: p of `invscaling`.
        learning_rate: `constant`, `optimal`, `invscaling` or `adaptive`.

    Raises:
        ConfigError: another name, or a number outside its range.

    >>> [round(rate, 5) for rate in LearningRateSGD(0.1, power_t=0.5).loop(4)]
    [0.1, 0.07071, 0.05774, 0.05]

    Source: the schedules in `ortpipe/stages/train/schedules/`; name and arguments of onnxcustom's class.
    """

    needs_grad = False  # whether it keeps a velocity

    def __init__(
        self, eta0: float = 0.01, alpha: float = 0.0001, power_t: float = 0.25, learning_rate: str = "invscaling"
    ) -> None:
        if learning_rate not in SCHEDULE_NAMES:
            raise ConfigError(
                "learning_rate must name a schedule.",
                got=repr(learning_rate),
                fix=nearest(learning_rate, SCHEDULE_NAMES),
            )
        if isinstance(eta0, int | float) and not 0 < eta0 < float("inf"):
            raise ConfigError("eta0, the first learning rate, must be positive and finite.", got=eta0, fix="Use 0.01.")
        self.eta0, self.alpha, self.power_t, self.learning_rate = eta0, alpha, power_t, learning_rate
        self.value_: float | None = None
        self.schedule()
        self.optimizer()

    def schedule(self) -> Schedule:
        """Return the schedule of the train stage."""
        settings = {"optimal": {"alpha": self.alpha}, "invscaling": {"power": self.power_t}}
        return SCHEDULES[SCHEDULE_NAMES[self.learning_rate]](**settings.get(self.learning_rate, {}))

    def optimizer(self, rows: int = 1) -> Optimizer:
        """Return the optimizer of the train stage, with rate η₀ divided by the rows of a batch."""
        return SGD(self.eta0 / rows)

    @property
    def value(self) -> float:
        """The rate now.

        Raises:
            TrainError: `init_learning_rate` has not been called yet.
        """
        if self.value_ is None:
            raise TrainError("A learning rate has no value before it is initialized.", fix="Call init_learning_rate().")
        return self.value_

    def init_learning_rate(self) -> Self:
        """Go back to the first pass's rate."""
        return self.update_learning_rate(0)

    def update_learning_rate(self, t: int, losses: Sequence[float] = ()) -> Self:
        """Move on to the rate after t passes, whose training losses `adaptive` reads."""
        schedule = self.schedule()
        self.value_ = float(schedule(self.eta0, np.array([t + 1]), t + 1)[0]) * schedule.factor(losses)
        return self

    def loop(self, n: int = 1000) -> Iterator[float]:
        """Yield the rates of n passes."""
        for t in range(n):
            yield self.update_learning_rate(t).value

    @staticmethod
    def select(class_name: Any, **kwargs: Any) -> LearningRateSGD:
        """Return a learning rate itself, one of a name (`SGD`, `Nesterov`), or a plain one that starts at a number.

        Raises:
            ConfigError: another name.
        """
        if isinstance(class_name, int | float):
            return LearningRateSGD(float(class_name), **kwargs)
        members = {LearningRateSGD: ("SGD",), LearningRateSGDNesterov: ("Nesterov", "SGDNesterov")}
        return by_name(LearningRateSGD, members, class_name, **kwargs)


class LearningRateSGDNesterov(LearningRateSGD):
    """Gradient descent with momentum: v ← μ·v − ηₜ·g, then θ ← θ + μ·v − ηₜ·g, or θ + v without `nesterov`.

    ηₜ is that of `LearningRateSGD`. The original documents `nesterov=False` as plain descent; it is momentum.

    Args:
        eta0, alpha, power_t, learning_rate: as in `LearningRateSGD`.
        momentum: μ, in [0, 1).
        nesterov: look ahead, as Nesterov does.

    Raises:
        ConfigError: another name, or a number outside its range.

    >>> type(LearningRateSGDNesterov(momentum=0.8, nesterov=False).optimizer()).__name__
    'Momentum'

    Source: Sutskever et al., 2013, as in scikit-learn's `MLPRegressor(solver='sgd')`.
    """

    needs_grad = True

    def __init__(
        self,
        eta0: float = 0.01,
        alpha: float = 0.0001,
        power_t: float = 0.25,
        learning_rate: str = "invscaling",
        momentum: float = 0.9,
        nesterov: bool = True,
    ) -> None:
        self.momentum, self.nesterov = momentum, nesterov
        super().__init__(eta0, alpha, power_t, learning_rate)

    def optimizer(self, rows: int = 1) -> Optimizer:
        """Return the optimizer of the train stage, with rate η₀ divided by the rows of a batch."""
        return OPTIMIZERS["nesterov" if self.nesterov else "momentum"](self.eta0 / rows, self.momentum)
