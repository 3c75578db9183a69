"""Checks of add_loss's settings by facts alone, before any stage runs; they also choose the loss for `auto`."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpipe.data.labels import check_survival
from ortpipe.data.rows import SHARES, Data
from ortpipe.doors import later
from ortpipe.errors import LossError, nearest, under
from ortpipe.facts import Facts
from ortpipe.stages.add_loss.config import AddLossConfig, HeadLoss
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.losses.auto import auto_note, chosen_by_model

if TYPE_CHECKING:  # it imports onnx-ir
    from ortpipe.stages.add_loss.domains import check_labels, check_pairs
else:
    later(__name__)


def check(facts: Facts, config: AddLossConfig, *, data: Data | None = None) -> Facts:
    """Reject losses that do not fit the tasks or the labels, and padding that is a class.

    Return the facts with those about labels, for the checks of later stages.
    """
    config = chosen_by_model(facts, config)
    if data is not None and data.class_weight and not facts.class_weight:
        rule, fix = "A model must know the class weights of its data.", "Give convert the same data."
        raise LossError(rule, got="class weights, and a model that was converted without them", fix=fix)
    if getattr(config.loss, "of_sequences", False) and facts.class_weight:
        rule, fix = "CTC has no class weights: its labels are sequences.", "Leave them out of the data."
        raise LossError(rule, got="class weights", fix=fix)
    of_batch = [loss for head in facts.predictions if getattr(loss := config.of(head).loss, "reads_batch", False)]
    if of_batch and config.sample_weight:
        rule = f"The loss {LOSSES.name_of(type(of_batch[0]))} has no row weights."
        fix = "Remove them: {@data.source.sample_weight}=null."
        raise LossError(rule, got="rows with weights", fix=fix)
    _check_heads(facts, config, data)
    if data is not None:
        _check_teacher(facts, config, data)
    label_facts = {}
    for head, head_facts in facts.predictions.items():
        with under(*path_of(config, head)):
            label_facts[head] = _checked(head_facts, config.of(head), None if data is None else data.of(head), head)
    heads = {name: dataclasses.replace(head, **label_facts[name]) for name, head in facts.heads.items()}
    return dataclasses.replace(facts, **label_facts[""], heads=heads)


def checked_losses(facts: Facts, config: AddLossConfig, data: Data | None) -> tuple[AddLossConfig, list[str]]:
    """Return the checked settings, with `auto` replaced by the losses for the model, and a note about that."""
    check(facts, config, data=data)
    chosen = chosen_by_model(facts, config)
    is_auto = getattr(config.loss, "depends_on_model", False)
    return chosen, [auto_note(facts, config.loss, chosen.loss)] if is_auto else []


def path_of(config: AddLossConfig, head: str) -> tuple[str, ...]:
    """Return the path of the settings of a head's loss."""
    return ("heads", head) if head in config.heads else ()


def _check_heads(facts: Facts, config: AddLossConfig, data: Data | None) -> None:
    first = None if data is None else data.train.head(1)
    names_by_key = {
        "{@add_loss.heads}": config.heads,
        "{@data.source.heads}": {} if first is None else first.heads.keys() - {SHARES},
    }
    for key, names in names_by_key.items():
        if unknown := [name for name in names if name not in facts.heads]:
            near = f"{nearest(unknown[0], facts.heads)} Or name" if facts.heads else "Name"
            rule = f"{key} must name further outputs of the model, which {{@convert.source.heads}} names, too."
            fix = f"{near} the output there: +{{@convert.source.heads.{unknown[0]}}}={{}}."
            raise LossError(rule, key="heads" if names is config.heads else None, got=repr(unknown[0]), fix=fix)
    if first is not None:
        for name in facts.heads:
            first.of(name)  # raises if rows lack that label


def _check_teacher(facts: Facts, config: AddLossConfig, data: Data) -> None:
    """Reject the predictions of a classifying teacher for a model or a loss that cannot learn them."""
    if SHARES not in data.train.head(1).heads:
        return
    if not facts.soft:
        rule, fix = "Teacher and model must have one task.", "Choose a teacher that predicts values, a …Regressor."
        raise LossError(rule, got=f"a teacher of classes for a {facts.task} model", fix=fix)
    classes = None if data.train.labels is None else tuple(np.unique(data.train.labels).tolist())
    if classes != facts.classes:
        rule, fix = "Teacher and model must have the same classes.", "Train a model of the training rows' classes."
        raise LossError(rule, got=f"{classes} and {facts.classes}", fix=fix)
    loss = config.of("").loss
    if not getattr(loss, "reads_shares", False):
        able = " or ".join(name for name, member in LOSSES.items() if getattr(member, "reads_shares", False))
        rule, got = "With a teacher of classes, the loss must read shares of classes.", LOSSES.name_of(type(loss))
        raise LossError(rule, got=got, fix=f"Choose add_loss=auto, {able}.")
    if facts.class_weight or "class_weight" in facts.objective or config.padding is not None:
        rule, fix = "With a teacher of classes, there are no class weights and no padding.", "Set them to null."
        raise LossError(rule, got="class weights or padding", fix=fix)


def _checked(facts: Facts, config: HeadLoss, data: Data | None, head: str) -> dict[str, Any]:
    """Check the loss of one prediction; return the facts about its labels."""
    loss: Any = config.loss
    class_labels, blank = facts.classes or (), None
    if getattr(loss, "of_sequences", False) and class_labels:  # the blank may be the padding, too: it ends a label
        blank = loss.index(len(class_labels))
        class_labels = tuple(name for name in class_labels if name != class_labels[blank])
    if config.padding in class_labels or (isinstance(config.padding, str) and facts.task == "regression"):
        raise LossError(
            "{key} must not be a class of the model, and a number for a regression.",
            key="padding",
            got=f"{config.padding!r}" + (f", one of {len(class_labels)} classes" if class_labels else ""),
            fix="Mark elements to ignore with another label, such as -100, or set the labels of the classes with "
            f"{{@{facts.settings}.classes}}.",
        )
    if facts.task not in getattr(loss, "tasks", (facts.task,)):  # a user's own loss need not declare them
        raise _other_task(facts, loss, head)
    if not head and getattr(loss, "link", None) == "log" and any("scaled" in r for r in facts.lineage):
        raise LossError(
            "With link=log the prediction must be the logarithm of the mean.",
            got=f"{LOSSES.name_of(type(loss))} for a prediction that is scaled to the labels' mean and deviation",
            fix="Set {@convert.source.scale_target}=false.",
        )
    if getattr(loss, "label_columns", None) == 2 and data is not None:
        check_survival(data)
    if link_of(loss) == "pairs" and data is not None:
        check_pairs(data)
    bound = getattr(loss, "labels", None)
    if bound is not None and data is not None and facts.task in ("regression", "multilabel"):
        check_labels(bound, LOSSES.name_of(type(loss)), data, config.padding)
    return {"padding": config.padding, "blank": blank, "link": link_of(loss), "levels": getattr(loss, "levels", ())}


def _other_task(facts: Facts, loss: Any, head: str) -> LossError:
    suitable = [name for name, member in LOSSES.items() if facts.task in member.tasks]
    key = f"{{@add_loss.heads.{head}.loss.name}}" if head else "add_loss"
    meanings = " or ".join(f"{{@{facts.settings}.task}}={task}" for task in loss.tasks)
    several = len(facts.outputs) > 1
    another = f", or another of its outputs {', '.join(facts.outputs)} as {{@convert.source.prediction}}"
    return LossError(
        "The loss must fit the model's task.",
        got=f"{LOSSES.name_of(type(loss))} for a {facts.task} {f'head {head!r}' if head else 'model'}",
        fix=f"Choose {key}={' or '.join(suitable)}; or, if an .onnx model's prediction"
        f"{f' {facts.prediction!r}' if several else ''} has another meaning, set {meanings}"
        + (f"{another}." if several and not head else "."),
    )


def link_of(loss: object) -> str | None:
    """Return the form of the prediction that a loss reads; None: the label's values."""
    link = getattr(loss, "link", None)
    return None if link == "identity" else link
