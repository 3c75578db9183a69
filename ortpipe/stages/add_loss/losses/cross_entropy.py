"""Cross-entropy: l = −log p[y]."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import onnx_ir as ir
from annotated_types import Gt, Lt

from ortpipe.graph.builder import Builder
from ortpipe.settings import Config
from ortpipe.stages.add_loss.losses import Scores


@dataclass(frozen=True)
class CrossEntropy(Config):
    """Cross-entropy of the true class, `sklearn.metrics.log_loss`.

    From logits z it is −log softmax(z)[y], finite for any z; from probabilities, p is clipped to [eps, 1] first.
    """

    eps: Annotated[float, Gt(0), Lt(0.5)] = 1e-6
    tasks: ClassVar[tuple[str, ...]] = ("multiclass",)

    def __call__(self, op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
        """Return −1[k = y]·log pₖ [N, K]."""
        p = scores.prediction
        log_p = op.Log(op.Clip(p, self.eps, 1)) if scores.logits is None else op.LogSoftmax(scores.logits, axis=-1)
        assert scores.classes is not None
        truth = op.Equal(label, op.const(np.arange(scores.classes)))  # [N, 1] against [K]
        return op.Mul(log_p, op.Neg(op.cast(truth, p)))  # the sign on the side that no parameter moves
