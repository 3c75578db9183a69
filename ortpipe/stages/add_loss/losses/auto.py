"""The source's loss: that of the objective that scikit-learn fits the estimator with, or else one for the task."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from ortpipe.errors import LossError
from ortpipe.facts import Facts
from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.stages.add_loss.losses import LOSSES, Loss
from ortpipe.stages.add_loss.scores import LossConfig, Scores

BY_TASK = {"regression": "l2", "binary": "log", "multiclass": "cross_entropy", "multilabel": "log"}


@dataclass(frozen=True)
class Auto(LossConfig):
    """The loss of `Facts.objective`; without one `l2`, `log` or `cross_entropy`, by the task."""

    tasks = tuple(BY_TASK)
    depends_on_model = True

    def of(self, facts: Facts) -> Loss:
        """Return the loss for a model with these facts."""
        settings = dict(facts.objective.get("loss") or {"name": BY_TASK[facts.task]})
        name = settings.pop("name")
        if name not in list(LOSSES):  # a path in a file's metadata would import a module
            rule = "The loss that the model names must be one of ortpipe's."
            raise LossError(rule, got=repr(name), fix="Choose another: add_loss=l2, for example.")
        return LOSSES[name](**settings)

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Raise LossError: the stage writes the loss of `of` instead."""
        raise LossError("The loss auto depends on the model.", got="a call without one", fix="Use the stage add_loss.")


def chosen_by_model(facts: Facts, config: Any) -> Any:
    """Return an AddLossConfig with `auto` replaced by the losses for the model and its heads."""
    configs = {head: config.of(head) for head in facts.predictions}
    if not any(getattr(of_head.loss, "depends_on_model", False) for of_head in configs.values()):
        return config
    for head, head_facts in facts.predictions.items():
        if getattr(loss := configs[head].loss, "depends_on_model", False):
            configs[head] = dataclasses.replace(configs[head], loss=loss.of(head_facts))
    heads = {head: configs[head] for head in facts.heads}
    return dataclasses.replace(config, loss=configs[""].loss, heads=heads)


def auto_note(facts: Facts, config: Loss, loss: Loss) -> str:
    """Return the loss that follows from the model as text, with the reason if the model names none."""
    settings = ", ".join(f"{key}={value}" for key, value in vars(loss).items())
    words = LOSSES.name_of(type(loss)) + (f" ({settings})" if settings else "")
    reason = "" if "loss" in facts.objective else f", because the task is {facts.task}"
    return f"the automatic loss is {words}{reason}" if isinstance(config, Auto) else f"the loss is {words}"
