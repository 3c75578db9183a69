"""Stochastic gradient descent: θ ← θ − η·g."""

from dataclasses import dataclass

from ortpipe.settings import Positive
from ortpipe.stages.train.links import Link, scale_by_rate
from ortpipe.stages.train.optimizers import Optimizer


@dataclass(frozen=True)
class SGD(Optimizer):
    """Plain stochastic gradient descent (Robbins and Monro, 1951)."""

    lr: Positive = 0.01

    def __call__(self) -> tuple[Link, ...]:
        return (scale_by_rate(),)
