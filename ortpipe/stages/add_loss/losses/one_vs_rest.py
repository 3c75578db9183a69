"""One versus rest: l = Σₖ l₂(1[k = y], zₖ), with a two-class loss l₂ for each class against the others."""

from dataclasses import dataclass
from typing import Annotated

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.settings import one_of
from ortpipe.stages.add_loss.losses.hinge import Hinge
from ortpipe.stages.add_loss.losses.log import Log
from ortpipe.stages.add_loss.losses.modified_huber import ModifiedHuber
from ortpipe.stages.add_loss.losses.perceptron import Perceptron
from ortpipe.stages.add_loss.losses.squared_hinge import SquaredHinge
from ortpipe.stages.add_loss.losses.squared_margin import SquaredMargin
from ortpipe.stages.add_loss.margins import log_sigmoid_input, required, truth
from ortpipe.stages.add_loss.scores import LossConfig, Scores

TWO_CLASS_LOSSES = {
    "hinge": Hinge,
    "log": Log,
    "modified_huber": ModifiedHuber,
    "perceptron": Perceptron,
    "squared_hinge": SquaredHinge,
    "squared_margin": SquaredMargin,
}


@dataclass(frozen=True)
class OneVersusRest(LossConfig):
    """The loss of scikit-learn's linear classifiers for several classes: each class has a score of its own.

    Attributes:
        loss: the two-class loss: hinge, log, modified_huber, perceptron, squared_hinge or squared_margin.
    """

    loss: Annotated[str, one_of("loss of two classes", TWO_CLASS_LOSSES)] = "log"
    tasks = ("multiclass",)

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return the terms of each class [N, E…, K]."""
        logits = required(scores, "one_vs_rest")
        z = log_sigmoid_input(logits) or logits  # if σ(z) is normalized to sum 1, the logits are log σ(z)
        return TWO_CLASS_LOSSES[self.loss]()(op, truth(op, label, scores), scores._replace(logits=z, classes=None))
