"""The penalties that OrtGradientForwardBackwardOptimizer takes: those of the penalty stage under onnxcustom's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from ortpipe.compat.parameters import Parameters
from ortpipe.errors import ConfigError, nearest


class LearningPenalty(Parameters, ABC):
    """What a batch is charged for the trained weights; one of its subclasses."""

    @abstractmethod
    def strengths(self) -> dict[str, float]:
        """Return the strength of each penalty of the penalty stage."""

    @staticmethod
    def select(class_name: Any, **kwargs: Any) -> LearningPenalty:
        """Return a penalty itself, or the one of a name.

        Raises:
            ConfigError: another name.

        >>> LearningPenalty.select(None), LearningPenalty.select("elastic", l1=0.1)
        (NoLearningPenalty(), ElasticLearningPenalty(l1=0.1, l2=0.5))
        """
        if isinstance(class_name, LearningPenalty):
            return class_name
        known: dict[str, type[LearningPenalty]] = {
            **dict.fromkeys(("", "none", "NoLearningPenalty"), NoLearningPenalty),
            **dict.fromkeys(("elastic", "l1l2", "ElasticLearningPenalty"), ElasticLearningPenalty),
        }
        if (class_name or "") not in known:
            raise ConfigError("A penalty is named.", got=repr(class_name), fix=nearest(str(class_name), known))
        return known[class_name or ""](**kwargs)


class NoLearningPenalty(LearningPenalty):
    """Nothing is charged.

    >>> NoLearningPenalty().strengths()
    {}
    """

    def strengths(self) -> dict[str, float]:
        """Return the strength of each penalty of the penalty stage."""
        return {}


class ElasticLearningPenalty(LearningPenalty):
    """l1·Σ|w| + l2·Σw², added to the loss of every batch and differentiated with it.

    The original took 2·l2·w + l1·sign(w) off the weights at every step, whatever the learning rate.

    Raises:
        ConfigError: a strength is negative.

    >>> ElasticLearningPenalty(l2=0.1).strengths()
    {'l1': 0.5, 'l2': 0.1}
    """

    def __init__(self, l1: float = 0.5, l2: float = 0.5) -> None:
        if not (0 <= l1 < float("inf") and 0 <= l2 < float("inf")):
            raise ConfigError("A penalty's strength is finite and not negative.", got=f"l1={l1}, l2={l2}", fix="Use 0.")
        self.l1, self.l2 = l1, l2

    def strengths(self) -> dict[str, float]:
        """Return the strength of each penalty of the penalty stage."""
        return {"l1": self.l1, "l2": self.l2}
