"""Optimal: ηₜ = η·t₀ / (t₀ + t − 1), t₀ = α^(−3/4)."""

from dataclasses import dataclass

from ortpipe.settings import Positive
from ortpipe.stages.train.schedules import Schedule, Steps


@dataclass(frozen=True)
class Optimal(Schedule):
    """Bottou's 1 / (α·(t₀ + t − 1)), scaled to start at η.

    With η = α^(−1/4) it is the `learning_rate='optimal'` of scikit-learn's `SGDRegressor` and `SGDClassifier`, where α
    is the strength of the penalty.

    Attributes:
        alpha: α; smaller values decay more slowly.
    """

    alpha: Positive = 0.0001

    def __call__(self, lr: float, step: Steps, total: int) -> Steps:
        first = self.alpha**-0.75
        return lr * first / (first + step - 1)
