"""The penalties that OrtGradientForwardBackwardOptimizer takes: those of the penalty stage under onnxcustom's names."""

from __future__ import annotations

from typing import Any

from ortpipe.compat.parameters import Parameters, by_name
from ortpipe.stages.penalty.config import PenaltyConfig


class LearningPenalty(Parameters):
    """What is added to the loss of every batch for the trained weights; one of its subclasses."""

    def strengths(self) -> dict[str, float]:
        """Return the strength of each penalty of the penalty stage.

        >>> NoLearningPenalty().strengths(), ElasticLearningPenalty(l2=0.1).strengths()
        ({}, {'l1': 0.5, 'l2': 0.1})
        """
        return self.get_params()

    @staticmethod
    def select(class_name: Any, **kwargs: Any) -> LearningPenalty:
        """Return a penalty itself, or the one of a name.

        Raises:
            ConfigError: another name.

        >>> LearningPenalty.select(None), LearningPenalty.select("elastic", l1=0.1)
        (NoLearningPenalty(), ElasticLearningPenalty(l1=0.1, l2=0.5))
        """
        members = {NoLearningPenalty: ("", "none"), ElasticLearningPenalty: ("elastic", "l1l2")}
        return by_name(LearningPenalty, members, class_name or "", **kwargs)


class NoLearningPenalty(LearningPenalty):
    """No penalty."""


class ElasticLearningPenalty(LearningPenalty):
    """l1·Σ|w| + l2·Σw², added to the loss of every batch and differentiated with it.

    The original took 2·l2·w + l1·sign(w) off the weights at every step, whatever the learning rate.

    Raises:
        ConfigError: a strength is negative.
    """

    def __init__(self, l1: float = 0.5, l2: float = 0.5) -> None:
        self.l1, self.l2 = l1, l2
        PenaltyConfig({"*": self.strengths()})  # checks them
