"""Modified Huber loss: l = max(0, 1 − s·z)² for s·z ≥ −1, else −4·s·z, of s = ±1."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortpipe.graph.core.builder import Builder
from ortpipe.settings import Config
from ortpipe.stages.add_loss.domains import ZERO_OR_ONE
from ortpipe.stages.add_loss.margins import margin
from ortpipe.stages.add_loss.scores import Scores


@dataclass(frozen=True)
class ModifiedHuber(Config):
    """The squared hinge loss, linear for s·z < −1 (Zhang, 2004), as scikit-learn's SGDClassifier.

    Smooth at s·z = 1 and at s·z = −1.
    """

    tasks: ClassVar[tuple[str, ...]] = ("binary", "multilabel")
    labels = ZERO_OR_ONE  # of several labels

    def __call__(self, op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
        """Return c·(2·r − c) of r = max(0, 1 − s·z) and c = min(r, 2) [N, E…, 1], or [N, E…, K] for K labels."""
        missing = op.Relu(op.Sub(1, margin(op, label, scores, "modified_huber")))
        near = op.Min(missing, 2)
        return op.Mul(near, op.Sub(op.Mul(missing, 2), near))
