"""The penalties of OrtGradientForwardBackwardOptimizer: those of the penalty stage under onnxcustom's names."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from ortpipe.compat.devices import array_of
from ortpipe.compat.functions import function_onnx_graph
from ortpipe.compat.learning_base import BaseLearningOnnx, put
from ortpipe.compat.parameters import by_name
from ortpipe.settings import NotNegative, checked


class BaseLearningPenalty(BaseLearningOnnx):
    """Base of penalties on the trained weights, which are added to the loss of every batch."""

    @abstractmethod
    def penalty_loss(self, device: Any, loss: Any, *weights: Any) -> Any:
        """Return the loss plus the penalties of these weights."""

    @abstractmethod
    def update_weights(self, n_bind: int, device: Any, statei: Any) -> Any:
        """Update weight number `n_bind` in place, before the gradient step."""

    @staticmethod
    def select(class_name: Any, **kwargs: Any) -> BaseLearningPenalty:
        """Return a penalty: an object as it is, or one by name.

        Raises:
            ConfigError: an unknown name.

        >>> BaseLearningPenalty.select(None), BaseLearningPenalty.select("elastic", l1=0.1)
        (NoLearningPenalty(), ElasticLearningPenalty(l1=0.1, l2=0.5))
        """
        members: dict[type, Sequence[str]] = {
            NoLearningPenalty: ("", "none"),
            ElasticLearningPenalty: ("elastic", "l1l2"),
        }
        return by_name(BaseLearningPenalty, members, class_name or "", **kwargs)


class NoLearningPenalty(BaseLearningPenalty):
    """No penalty."""

    def build_onnx_function(self, opset: int, device: Any, n_tensors: int = 1) -> None:
        """Do nothing: there is no ONNX function."""

    def penalty_loss(self, device: Any, loss: Any, *weights: Any) -> Any:
        return loss

    def update_weights(self, n_bind: int, device: Any, statei: Any) -> Any:
        return statei


class ElasticLearningPenalty(BaseLearningPenalty):
    """l1·Σ|w| + l2·Σw², added to the loss of every batch and differentiated with it.

    The original subtracted 2·l2·w + l1·sign(w) from the weights at every step, whatever the learning rate.

    Raises:
        ConfigError: a strength is negative.
    """

    def __init__(self, l1: float = 0.5, l2: float = 0.5) -> None:
        self.l1, self.l2 = checked(l1, NotNegative, "l1"), checked(l2, NotNegative, "l2")

    def build_onnx_function(self, opset: int, device: Any, n_tensors: int = 1) -> None:
        """Build the original's ONNX functions of the penalty and of its weight update."""
        terms = {"n_tensors": n_tensors, "loss_shape": (1,), "l1_weight": self.l1, "l2_weight": self.l2}
        self.penalty_onnx_ = function_onnx_graph("n_penalty_elastic_error", target_opset=opset, **terms)
        grad = function_onnx_graph("update_penalty_elastic_error", target_opset=opset, l1=self.l1, l2=self.l2)
        self.penalty_grad_onnx_ = grad

    def penalty_loss(self, device: Any, loss: Any, *weights: Any) -> Any:
        arrays = [array_of(weight) for weight in weights]
        return array_of(loss) + sum(self.l1 * abs(w).sum() + self.l2 * (w**2).sum() for w in arrays)

    def gradient(self, weight: np.ndarray) -> np.ndarray:
        """Return l1·sign(w) + 2·l2·w."""
        return self.l1 * np.sign(weight) + 2 * self.l2 * weight

    def update_weights(self, n_bind: int, device: Any, statei: Any) -> Any:
        """Subtract 2·l2·w + l1·sign(w) from a weight, as the original did; training uses the gradient instead."""
        weight = array_of(statei)
        return put(statei, weight - self.gradient(weight))
