"""One versus rest: l = Σₖ l₂(1[k = y], zₖ), the loss l₂ of two classes of each class against the others."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import onnx_ir as ir

from ortpipe.graph.builder import Builder
from ortpipe.settings import Config, one_of
from ortpipe.stages.add_loss.losses.hinge import Hinge
from ortpipe.stages.add_loss.losses.log import Log
from ortpipe.stages.add_loss.losses.modified_huber import ModifiedHuber
from ortpipe.stages.add_loss.losses.perceptron import Perceptron
from ortpipe.stages.add_loss.losses.squared_hinge import SquaredHinge
from ortpipe.stages.add_loss.losses.squared_margin import SquaredMargin
from ortpipe.stages.add_loss.scores import Scores, behind_log_sigmoid, required, truth

OF_TWO = {
    "hinge": Hinge,
    "log": Log,
    "modified_huber": ModifiedHuber,
    "perceptron": Perceptron,
    "squared_hinge": SquaredHinge,
    "squared_margin": SquaredMargin,
}


@dataclass(frozen=True)
class OneVersusRest(Config):
    """What scikit-learn's linear classifiers fit to several classes: one score each, as if they were labels.

    Attributes:
        loss: of two classes: hinge, log, modified_huber, perceptron, squared_hinge or squared_margin.
    """

    loss: Annotated[str, one_of("loss of two classes", OF_TWO)] = "log"
    tasks: ClassVar[tuple[str, ...]] = ("multiclass",)

    def __call__(self, op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
        """Return the terms of each class [N, E…, K]."""
        logits = required(scores, "one_vs_rest")
        z = behind_log_sigmoid(logits) or logits  # where σ(z) is scaled to sum 1, the logits are log σ(z)
        return OF_TWO[self.loss]()(op, truth(op, label, scores), scores._replace(logits=z, classes=None))
