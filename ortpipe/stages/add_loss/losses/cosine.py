"""Cosine distance: l = 1 − ŷ·y / (‖ŷ‖·‖y‖)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.settings import Positive
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class CosineDistance(LossConfig):
    """The distance of an embedding from the vector it should point along, 1 − `torch.nn.functional.cosine_similarity`.

    Attributes:
        eps: the smallest norm to divide by; at a shorter ŷ, only the product contributes to the derivative.
    """

    eps: Positive = 1e-8

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return 1 − ŷ·y / (max(‖ŷ‖, ε)·max(‖y‖, ε)) [N, E…, 1]."""
        y = scores.prediction
        product = op.ReduceSum(op.Mul(y, label), [-1], keepdims=1)
        return op.Sub(1, op.Div(product, op.Mul(norm(op, y, self.eps), norm(op, label, self.eps))))


def norm(op: Builder, value: Any, eps: float) -> Any:
    """Return max(‖v‖, ε) [N, E…, 1] of vectors [N, E…, K]."""
    square = op.ReduceSum(op.Mul(value, value), [-1], keepdims=1)
    least = max(eps**2, float(np.finfo(value.dtype.numpy()).tiny))  # in float16 ε² is 0
    return op.Sqrt(op.Max(square, least))  # inside the root, whose derivative at 0 is infinite
