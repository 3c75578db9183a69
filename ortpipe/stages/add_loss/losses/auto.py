"""The source's loss: that of the objective that scikit-learn fits the estimator with, or else one for the task."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortpipe.errors import LossError
from ortpipe.facts import Facts
from ortpipe.graph.core.builder import Builder
from ortpipe.settings import Config
from ortpipe.stages.add_loss.losses import LOSSES, Loss
from ortpipe.stages.add_loss.scores import Scores

BY_TASK = {"regression": "l2", "binary": "log", "multiclass": "cross_entropy", "multilabel": "log"}


@dataclass(frozen=True)
class Auto(Config):
    """The loss of `Facts.objective`; without one `l2`, `log` or `cross_entropy`, by the task."""

    tasks: ClassVar[tuple[str, ...]] = tuple(BY_TASK)

    def of(self, facts: Facts) -> Loss:
        """Return the loss for a model with these facts."""
        settings = dict(facts.objective.get("loss") or {"name": BY_TASK[facts.task]})
        name = settings.pop("name")
        if name not in list(LOSSES):  # a path in a file's metadata would import a module
            rule, fix = (
                "The loss that the model names must be one of ortpipe's.",
                "Choose another: add_loss=l2, for example.",
            )
            raise LossError(rule, got=repr(name), fix=fix)
        return LOSSES[name](**settings)

    def __call__(self, op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
        """Raise LossError: the stage writes the loss of `of` instead."""
        raise LossError("The loss auto depends on the model.", got="a call without one", fix="Use the stage add_loss.")
