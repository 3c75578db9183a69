"""Log loss of two classes: l = −y·log(p) − (1 − y)·log(1 − p)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ortpipe.errors import ConfigError

if TYPE_CHECKING:
    import onnx_ir as ir

    from ortpipe.graph.builder import Builder
    from ortpipe.stages.add_loss.losses import Scores


@dataclass(frozen=True)
class Log:
    """Log loss, `sklearn.metrics.log_loss` for two classes; of several labels, their sum.

    From logits z it is max(z, 0) − z·y + log(1 + exp(−|z|)), finite for any z; from probabilities, p is clipped
    to [eps, 1 − eps] first.
    """

    eps: float = 1e-6
    tasks: ClassVar[tuple[str, ...]] = ("binary", "multilabel")

    def __post_init__(self) -> None:
        if not 0 < self.eps < 0.5:
            raise ConfigError(
                "add_loss.loss.eps lies between 0 and 0.5.", got=self.eps, fix="Set add_loss.loss.eps=1e-6."
            )

    def __call__(self, op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
        """Return the loss [N, 1], or [N, K] for K labels."""
        z, p = scores.logits, scores.prediction
        y = op.cast(label, p)
        one = op.like(1, p)
        if z is not None:
            tail = op.Log(op.Add(op.Exp(op.Neg(op.Abs(z))), one))
            return op.Add(op.Sub(op.Relu(z), op.Mul(z, y)), tail)
        if scores.classes == 2 and p.shape is not None and p.shape[-1] == 2:
            p = op.Gather(p, op.const([1]), axis=1)
        p = op.Clip(p, op.like(self.eps, p), op.like(1 - self.eps, p))
        one_minus_y, one_minus_p = op.Sub(one, y), op.Sub(one, p)
        return op.Neg(op.Add(op.Mul(y, op.Log(p)), op.Mul(one_minus_y, op.Log(one_minus_p))))
