"""Cross-entropy: l = −log p[y], or −Σₖ qₖ·log pₖ of smoothed labels q."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Lt

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.settings import Share
from ortpipe.stages.add_loss.margins import truth
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class CrossEntropy(LossConfig):
    """Cross-entropy of the true class, `sklearn.metrics.log_loss`.

    From logits z it is −log softmax(z)[y], finite for any z; from probabilities, p is clipped to [eps, 1] first.

    Attributes:
        eps: clips probabilities if the graph has no logits.
        smoothing: ε, the share of the label that is spread over all classes, as
            `torch.nn.CrossEntropyLoss(label_smoothing=ε)` (Szegedy et al., 2016).
    """

    eps: Annotated[float, Gt(0), Lt(0.5)] = 1e-6
    smoothing: Share = 0.0
    tasks = ("multiclass",)
    reads_shares = True

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return −qₖ·log pₖ [N, E…, K] of q = 1[k = y]."""
        p = scores.prediction
        log_p = op.Log(op.Clip(p, self.eps, 1)) if scores.logits is None else op.LogSoftmax(scores.logits, axis=-1)
        share = truth(op, label, scores)
        if self.smoothing:
            assert scores.classes is not None
            share = op.Add(op.Mul(share, 1 - self.smoothing), self.smoothing / scores.classes)
        return op.Mul(log_p, op.Neg(share))  # the sign goes to the factor without parameters
