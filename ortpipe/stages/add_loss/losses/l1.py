"""Absolute error: l = Σₖ |ŷₖ − yₖ|."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortpipe.graph.core.builder import Builder
from ortpipe.settings import Config
from ortpipe.stages.add_loss.scores import Scores


@dataclass(frozen=True)
class L1(Config):
    """Absolute error, `sklearn.metrics.mean_absolute_error` for one output; its derivative at 0 is 0."""

    tasks: ClassVar[tuple[str, ...]] = ("regression",)

    def __call__(self, op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
        """Return |ŷ − y| [N, K]."""
        return op.Abs(op.Sub(scores.prediction, label))
