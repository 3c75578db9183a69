"""Squared hinge loss: l = max(0, 1 − s·z)² of s = ±1."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortpipe.graph.core.builder import Builder
from ortpipe.settings import Config
from ortpipe.stages.add_loss.domains import ZERO_OR_ONE
from ortpipe.stages.add_loss.margins import margin
from ortpipe.stages.add_loss.scores import Scores


@dataclass(frozen=True)
class SquaredHinge(Config):
    """The square of the hinge loss, as scikit-learn's SGDClassifier and LinearSVC; smooth at s·z = 1."""

    tasks: ClassVar[tuple[str, ...]] = ("binary", "multilabel")
    labels = ZERO_OR_ONE  # of several labels

    def __call__(self, op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
        """Return max(0, 1 − s·z)² [N, E…, 1], or [N, E…, K] for K labels."""
        missing = op.Relu(op.Sub(1, margin(op, label, scores, "squared_hinge")))
        return op.Mul(missing, missing)
