"""Squared error: l = Σₖ (ŷₖ − yₖ)²."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortpipe.graph.core.builder import Builder
from ortpipe.settings import Config
from ortpipe.stages.add_loss.scores import Scores


@dataclass(frozen=True)
class L2(Config):
    """Squared error (no factor ½), `sklearn.metrics.mean_squared_error` for one output."""

    tasks: ClassVar[tuple[str, ...]] = ("regression",)

    def __call__(self, op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
        """Return (ŷ − y)² [N, K]."""
        difference = op.Sub(scores.prediction, label)
        return op.Mul(difference, difference)
