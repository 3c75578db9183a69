"""The objective that a scikit-learn estimator was fitted by: its facts, and the note about them."""

from collections.abc import Mapping, Sequence
from typing import Any

from ortpipe.data.class_weight import weights_of_rows
from ortpipe.data.labels import class_index
from ortpipe.data.rows import Data
from ortpipe.errors import DataError
from ortpipe.facts import Facts
from ortpipe.stages.convert.objective import Objective

FITTED_BY = "scikit-learn fits it by"
MATCHING = "the loss auto and the penalty auto"


def objective_facts(objective: Objective | None, facts: Facts, data: Data | None) -> dict[str, Any]:
    """Return `Facts.objective`, with the numbers that depend on the training rows."""
    if objective is None:
        return {}
    index = weight = None
    sizes: dict[str, Any] = {}
    if data is not None:
        rows = data.train.sample()
        weight, sizes = weights_of_rows(data.class_weight, rows.label, rows.sample_weight), {"rows": len(data.train)}
        if objective.class_weight is not None:
            index = class_index(facts, rows.label) if facts.classes is not None else rows.label
        if weight is not None and objective.divides_weights:
            sizes["weight"] = float(weight.mean())
    if objective.class_weight is not None:
        count = len(facts.classes) if facts.classes is not None else 0 if index is None else index.shape[1]
        sizes["class_weight"] = objective.class_weight.resolved(count, index, weight)
        if sizes["class_weight"] is None:
            del sizes["class_weight"]
            objective = objective.without("its class weights, which depend on the training rows")
    named = ("loss", "penalty", "reduction", "missing")
    return {**{name: getattr(objective, name) for name in named}, **sizes}


def class_weight(task: str, classes: Sequence[Any] | None, data: Data | None) -> tuple[float, ...]:
    """Return the data's factors of a model's classes in the loss, () if the data have none."""
    weights = {} if data is None else data.class_weight
    if weights and classes is None:
        rule, actual = "Class weights need a classifier of one class per row.", f"a {task} model"
        raise DataError(rule, key="class_weight", got=actual, fix="Set {key}=null.")
    return tuple(weights.get(name, 1.0) for name in classes or () if weights)


def objective_notes(objective: Mapping[str, Any]) -> Sequence[str]:
    """Return a note of the loss and penalty that match an estimator's objective, and of the missing parts.

    >>> objective_notes({"loss": {"name": "huber", "delta": 2.7}, "penalty": {"w": {"l2": 0.5}}, "reduction": "sum"})
    ['scikit-learn fits it by huber (delta=2.7) summed over rows + 0.5·l2 of w: the loss auto and the penalty auto']
    """
    if not objective:
        return []
    loss, mean = dict(objective["loss"]), objective["reduction"] == "mean"
    settings = ", ".join(f"{key}={value}" for key, value in loss.items() if key != "name")
    text = loss["name"] + (f" ({settings})" if settings else "") + (" per row" if mean else " summed over rows")
    text += " with class weights" if "class_weight" in objective else ""
    for name, strengths in objective.get("penalty", {}).items():
        text += "".join(f" + {strength:.6g}·{kind} of {name}" for kind, strength in strengths.items())
    notes = [f"{FITTED_BY} {text}: {MATCHING}"]
    if missing := objective.get("missing"):
        notes = [f"{FITTED_BY} a variant of {text}: {MATCHING}; not included: {missing}"]
    if "weight" in objective:
        notes.append("scikit-learn divides the weights of rows by their mean, and so does the penalty auto")
    return notes
