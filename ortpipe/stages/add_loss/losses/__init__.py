"""The catalogue of losses: each is a frozen dataclass whose call writes the loss's terms per row."""

from typing import Any, Protocol

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.settings import Catalogue
from ortpipe.stages.add_loss.scores import Scores as Scores


class Loss(Protocol):
    """A config whose call writes a loss."""

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return the terms [N, E…, K] or [N, E…, 1] whose sum over the last axis is an element's loss."""


LOSSES: Catalogue[Any] = Catalogue(
    "loss",
    {
        "auto": "ortpipe.stages.add_loss.losses.auto:Auto",
        "contrastive": "ortpipe.stages.add_loss.losses.contrastive:Contrastive",
        "cosine": "ortpipe.stages.add_loss.losses.cosine:CosineDistance",
        "cox": "ortpipe.stages.add_loss.losses.cox:Cox",
        "cross_entropy": "ortpipe.stages.add_loss.losses.cross_entropy:CrossEntropy",
        "ctc": "ortpipe.stages.add_loss.losses.ctc:CTC",
        "discrete_hazard": "ortpipe.stages.add_loss.losses.discrete_hazard:DiscreteHazard",
        "elastic": "ortpipe.stages.add_loss.losses.elastic:Elastic",
        "epsilon_insensitive": "ortpipe.stages.add_loss.losses.epsilon_insensitive:EpsilonInsensitive",
        "focal": "ortpipe.stages.add_loss.losses.focal:Focal",
        "gamma": "ortpipe.stages.add_loss.losses.gamma:Gamma",
        "hinge": "ortpipe.stages.add_loss.losses.hinge:Hinge",
        "huber": "ortpipe.stages.add_loss.losses.huber:Huber",
        "info_nce": "ortpipe.stages.add_loss.losses.info_nce:InfoNCE",
        "l1": "ortpipe.stages.add_loss.losses.l1:L1",
        "l2": "ortpipe.stages.add_loss.losses.l2:L2",
        "log": "ortpipe.stages.add_loss.losses.log:Log",
        "modified_huber": "ortpipe.stages.add_loss.losses.modified_huber:ModifiedHuber",
        "one_vs_rest": "ortpipe.stages.add_loss.losses.one_vs_rest:OneVersusRest",
        "onnx": "ortpipe.stages.add_loss.losses.onnx:OnnxLoss",
        "perceptron": "ortpipe.stages.add_loss.losses.perceptron:Perceptron",
        "poisson": "ortpipe.stages.add_loss.losses.poisson:Poisson",
        "quantile": "ortpipe.stages.add_loss.losses.quantile:Quantile",
        "squared_epsilon_insensitive": "ortpipe.stages.add_loss.losses.squared_epsilon_insensitive:SquaredInsensitive",
        "squared_hinge": "ortpipe.stages.add_loss.losses.squared_hinge:SquaredHinge",
        "squared_margin": "ortpipe.stages.add_loss.losses.squared_margin:SquaredMargin",
        "tweedie": "ortpipe.stages.add_loss.losses.tweedie:Tweedie",
    },
    open_to_own=True,
)
