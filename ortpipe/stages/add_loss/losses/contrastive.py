"""Contrastive loss: l = Σₖ yₖ·dₖ² + (1 − yₖ)·max(0, m − dₖ)² of distances dₖ ≥ 0."""

from dataclasses import dataclass

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.settings import Positive
from ortpipe.stages.add_loss.domains import ZERO_OR_ONE
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class Contrastive(LossConfig):
    """The loss of a model of pairs, whose prediction is their distance (Hadsell, Chopra and LeCun, 2006).

    A label is 1 if the row's pair belongs together, else 0. As in TensorFlow Addons' `ContrastiveLoss`, there is no
    factor ½. For embeddings whose negative examples are the other rows of the batch, see `info_nce`.

    Attributes:
        margin: m, the distance from which on pairs that do not belong together cost nothing; the derivative at m is 0.
    """

    margin: Positive = 1.0
    labels = ZERO_OR_ONE

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return y·d² + (1 − y)·max(0, m − d)² [N, E…, K]."""
        near = op.Mul(scores.prediction, scores.prediction)
        missing = op.Relu(op.Sub(self.margin, scores.prediction))
        return op.Add(op.Mul(label, near), op.Mul(op.Sub(1, label), op.Mul(missing, missing)))
