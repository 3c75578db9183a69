"""The catalogue of losses: each is a frozen dataclass that is called to write its per-row terms."""

from typing import ClassVar, NamedTuple, Protocol

import onnx_ir as ir

from ortpipe.graph.builder import Builder
from ortpipe.settings import Catalogue


class Scores(NamedTuple):
    """What a loss compares the label with.

    `prediction` [N, K] holds values or probabilities; `logits` [N, K] ([N, 1] for two classes) is None where the
    graph has none; `classes` is their number, None for a regression; `opposite` logits are a pair [−s, s] of which s
    is the logit.
    """

    prediction: ir.Value
    logits: ir.Value | None
    classes: int | None
    opposite: bool = False


class Loss(Protocol):
    """A config that writes a loss when called."""

    tasks: ClassVar[tuple[str, ...]]

    def __call__(self, op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
        """Return the terms [N, K] whose sum over K is the row's loss."""


LOSSES: Catalogue[type[Loss]] = Catalogue(
    "loss",
    {
        "cross_entropy": "ortpipe.stages.add_loss.losses.cross_entropy:CrossEntropy",
        "elastic": "ortpipe.stages.add_loss.losses.elastic:Elastic",
        "l1": "ortpipe.stages.add_loss.losses.l1:L1",
        "l2": "ortpipe.stages.add_loss.losses.l2:L2",
        "log": "ortpipe.stages.add_loss.losses.log:Log",
    },
)
