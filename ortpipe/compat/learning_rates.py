"""The learning rates that onnxcustom's classes take: a schedule of the train stage, and its optimizer."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ortpipe import OPTIMIZERS, SCHEDULES, Optimizer, Schedule
from ortpipe.compat.devices import array_of
from ortpipe.compat.functions import function_onnx_graph
from ortpipe.compat.learning_base import BaseLearningOnnx, is_own, put
from ortpipe.compat.parameters import by_name, check_known
from ortpipe.errors import TrainError
from ortpipe.settings import NotNegative, Positive, checked
from ortpipe.stages import SGD

SCHEDULE_NAMES = {  # onnxcustom's name → the catalogue's
    "constant": "constant",
    "optimal": "optimal",
    "invscaling": "inverse_scaling",
    "adaptive": "adaptive",
}


class BaseLearningRate(BaseLearningOnnx):
    """Base of learning rates with one value per pass over the rows, and of the weight updates that use them.

    A user's own subclass defines `init_learning_rate`, `update_learning_rate` and `value`; its steps are plain descent,
    θ ← θ − (ηₜ / B)·g, unless it overrides `update_weights`.
    """

    needs_grad = False  # whether the updates need a velocity

    @property
    @abstractmethod
    def value(self) -> float:
        """The current rate."""

    @abstractmethod
    def init_learning_rate(self) -> Self:
        """Reset to the first pass's rate."""

    @abstractmethod
    def update_learning_rate(self, t: int) -> Self:
        """Set the rate after t passes: t is 1 after the first pass, where the original passed 0."""

    def build_onnx_function(self, opset: int, device: Any, n_tensors: int = 1) -> None:
        """Do nothing: there is no ONNX function."""

    def update_weights(
        self, n_bind: int, device: Any, statei: Any, gradienti: Any, batch_size: int, velocity: Any = None
    ) -> Any:
        """Update weight number `n_bind`, and its velocity, by the gradient of a sum over rows, in place."""
        return put(statei, array_of(statei) - self.value / batch_size * array_of(gradienti))

    def loop(self, n: int = 1000) -> Iterator[float]:
        """Yield the rates of n passes."""
        self.init_learning_rate()
        for t in range(n):
            yield self.value
            self.update_learning_rate(t + 1)

    def schedule(self) -> Schedule:
        """Return the schedule of the train stage."""
        return _Loop(self)

    def first(self) -> float:
        """Return the rate of the first pass."""
        return next(copy.copy(self).loop(1))

    def optimizer(self, rows: int = 1) -> Optimizer:
        """Return the optimizer of the train stage, with the rate divided by the rows of a batch."""
        return SGD(self._scale() / rows)

    def _scale(self) -> float:
        """Return the rate that the train stage's schedule multiplies."""
        return 1.0

    def after(self, losses: Sequence[float]) -> None:
        """Set the rate that follows passes with these training losses."""
        for _ in self.loop(len(losses)):
            pass

    @staticmethod
    def select(class_name: Any, **kwargs: Any) -> BaseLearningRate:
        """Return a learning rate: an object as it is, one by name (`SGD`, `Nesterov`), or SGD with a number as η₀.

        Raises:
            ConfigError: an unknown name.
        """
        if isinstance(class_name, int | float | np.number) and not isinstance(class_name, bool):
            return LearningRateSGD(float(class_name), **kwargs)
        members: dict[type, Sequence[str]] = {
            LearningRateSGD: ("SGD",),
            LearningRateSGDNesterov: ("Nesterov", "SGDNesterov"),
        }
        return by_name(BaseLearningRate, members, class_name, **kwargs)


@dataclass(frozen=True)
class _Loop(Schedule):
    """The rates of a user's own class, the first of which may be 0."""

    rate: Any

    def __call__(self, lr: float, step: np.ndarray, total: int) -> np.ndarray:
        values = np.array([*copy.copy(self.rate).loop(int(np.max(step)))])
        return lr * values[np.asarray(step) - 1]


class LearningRateSGD(BaseLearningRate):
    """Plain gradient descent, θ ← θ − ηₜ·g, with one rate per pass over the rows.

    `constant` is ηₜ = η₀; `invscaling` η₀ / tᵖ; `optimal` η₀·t₀ / (t₀ + t − 1) with t₀ = α^(−3/4); `adaptive` η₀ / 5ᵏ
    after k times five passes without progress of the training loss (1e-3 per row). They are scikit-learn's
    `SGDRegressor(learning_rate=…)`, but t counts passes and `optimal` starts at η₀.
    The original used another t₀ (from a loss with a wrong derivative), used the first rate of `invscaling` twice, and
    rejected `adaptive`.

    Args:
        eta0: η₀, the rate of the first pass.
        alpha: α of `optimal`.
        power_t: p of `invscaling`.
        learning_rate: `constant`, `optimal`, `invscaling` or `adaptive`.

    Raises:
        ConfigError: an unknown name, or a number outside its range.

    >>> [round(rate, 5) for rate in LearningRateSGD(0.1, power_t=0.5).loop(4)]
    [0.1, 0.07071, 0.05774, 0.05]

    Source: the schedules in `ortpipe/stages/train/schedules/`; name and arguments of onnxcustom's class.
    """

    def __init__(
        self, eta0: float = 0.01, alpha: float = 0.0001, power_t: float = 0.25, learning_rate: str = "invscaling"
    ) -> None:
        check_known(learning_rate, SCHEDULE_NAMES, "learning_rate must name a schedule.")
        self.eta0, self.alpha = checked(eta0, Positive, "eta0", 0.01), checked(alpha, Positive, "alpha", 1e-4)
        self.power_t, self.learning_rate = checked(power_t, NotNegative, "power_t", 0.25), learning_rate
        self.value_: float | None = None

    def schedule(self) -> Schedule:
        return super().schedule() if is_own(self) else self._formula()

    def _formula(self) -> Schedule:
        settings = {"optimal": {"alpha": self.alpha}, "invscaling": {"power": self.power_t}}
        return SCHEDULES[SCHEDULE_NAMES[self.learning_rate]](**settings.get(self.learning_rate, {}))

    def _scale(self) -> float:
        return super()._scale() if is_own(self) else self.eta0

    def build_onnx_function(self, opset: int, device: Any, n_tensors: int = 1) -> None:
        """Build the ONNX function of a step."""
        self.axpy_onnx_ = function_onnx_graph("axpy", target_opset=opset)

    @property
    def value(self) -> float:
        """The current rate; TrainError: `init_learning_rate` has not been called."""
        if self.value_ is None:
            raise TrainError("A learning rate has no value before it is initialized.", fix="Call init_learning_rate().")
        return self.value_

    def init_learning_rate(self) -> Self:
        return self.update_learning_rate(0)

    def update_learning_rate(self, t: int, losses: Sequence[float] = ()) -> Self:
        """Set the rate after t passes; `adaptive` needs their training losses."""
        schedule = self._formula()
        self.value_ = float(schedule(self.eta0, np.array([t + 1]), t + 1)[0]) * schedule.factor(losses)
        return self

    def after(self, losses: Sequence[float]) -> None:
        if is_own(self):
            super().after(losses)
        else:
            self.update_learning_rate(len(losses), losses)


class LearningRateSGDNesterov(LearningRateSGD):
    """Gradient descent with momentum: v ← μ·v − ηₜ·g, then θ ← θ + μ·v − ηₜ·g, or θ + v without `nesterov`.

    ηₜ is that of `LearningRateSGD`. The original documents `nesterov=False` as plain descent; it is momentum.

    Args:
        eta0, alpha, power_t, learning_rate: as in `LearningRateSGD`.
        momentum: μ, in [0, 1).
        nesterov: use Nesterov's look-ahead.

    Raises:
        ConfigError: an unknown name, or a number outside its range.

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
        self.optimizer()  # checks the momentum

    def optimizer(self, rows: int = 1) -> Optimizer:
        return OPTIMIZERS["nesterov" if self.nesterov else "momentum"](self._scale() / rows, self.momentum)

    def build_onnx_function(self, opset: int, device: Any, n_tensors: int = 1) -> None:
        """Build the ONNX function of a step."""
        self.axpyw_onnx_ = function_onnx_graph("axpyw2" if self.nesterov else "axpyw", target_opset=opset)

    def update_weights(
        self, n_bind: int, device: Any, statei: Any, gradienti: Any, batch_size: int, velocity: Any = None
    ) -> Any:
        step = -self.value / batch_size * array_of(gradienti)
        new_velocity = self.momentum * array_of(velocity) + step
        change = self.momentum * new_velocity + step if self.nesterov else new_velocity
        return put(statei, array_of(statei) + change), put(velocity, new_velocity)
