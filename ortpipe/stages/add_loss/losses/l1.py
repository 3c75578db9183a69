"""Absolute error: l = Σₖ |ŷₖ − yₖ|."""

from dataclasses import dataclass

import onnx_ir as ir

from ortpipe.graph.core.builder import Builder
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class L1(LossConfig):
    """Absolute error, `sklearn.metrics.mean_absolute_error` for one output; its derivative at 0 is 0."""

    def __call__(self, op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
        """Return |ŷ − y| [N, K]."""
        return op.Abs(op.Sub(scores.prediction, label))
