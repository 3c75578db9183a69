"""Perceptron loss: l = max(0, −s·z) of s = ±1."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortpipe.graph.core.builder import Builder
from ortpipe.settings import Config
from ortpipe.stages.add_loss.domains import ZERO_OR_ONE
from ortpipe.stages.add_loss.margins import margin
from ortpipe.stages.add_loss.scores import Scores


@dataclass(frozen=True)
class Perceptron(Config):
    """How far a row is on the wrong side (Rosenblatt, 1958), as scikit-learn's Perceptron; 0 on the right side."""

    tasks: ClassVar[tuple[str, ...]] = ("binary", "multilabel")
    labels = ZERO_OR_ONE  # of several labels

    def __call__(self, op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
        """Return max(0, −s·z) [N, E…, 1], or [N, E…, K] for K labels."""
        return op.Relu(op.Neg(margin(op, label, scores, "perceptron")))
