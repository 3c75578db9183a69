"""The objective that scikit-learn fits an estimator by: a loss, and penalties of parameters; its facts and notes."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ortpipe.data.class_weight import weights_of_rows
from ortpipe.data.labels import class_index
from ortpipe.data.rows import Data
from ortpipe.errors import DataError
from ortpipe.facts import Facts

FITTED_BY = "scikit-learn fits it by"
MATCHING = "the automatic loss and penalty use it"
Strengths = Mapping[str, float]


@dataclass(frozen=True)
class ClassWeight:
    """The class weights of an estimator.

    Attributes:
        values: of each class, or `balanced`.
        of: `rows`: a class's weight is that of its rows; `positives`: that of its rows against the rest, which weigh 1;
            `members`: of one estimator for each class or label, with values for its classes 0 and 1.
        counts_weights: whether `balanced` adds up the weights of rows instead of counting rows.
    """

    values: tuple[float, ...] | Literal["balanced"]
    of: Literal["rows", "positives", "members"] = "rows"
    counts_weights: bool = False

    def resolved(self, count: int, index: np.ndarray | None, weight: np.ndarray | None) -> list[Any] | None:
        """Return the weight of each of `count` classes, or [negatives', positives'] of each column; None if unknown.

        `index` holds the class of each row, [N], or 0 and 1 for each label, [N, K]; None without rows.
        """
        if index is None and (self.values == "balanced" or not count):
            return None
        if self.of != "members":
            values = self._of_classes(index, weight, count)
            return values if self.of == "rows" else [[1.0, value] for value in values]
        columns = None if index is None else index.T if index.ndim == 2 else index == np.arange(count)[:, None]
        return [self._of_classes(column, weight, 2) for column in ([None] * count if columns is None else columns)]

    def _of_classes(self, index: np.ndarray | None, weight: np.ndarray | None, count: int) -> list[float]:
        if self.values != "balanced":
            return list(self.values)
        counted = weight if self.counts_weights else None
        totals = np.bincount(np.asarray(index, np.int64), counted, minlength=count).astype(float)
        return np.where(totals > 0, totals.sum() / (np.sum(totals > 0) * np.maximum(totals, 1e-300)), 1.0).tolist()


@dataclass(frozen=True)
class Objective:
    """A loss and penalties whose minimum is the fitted estimator.

    Attributes:
        loss: a member of add_loss's catalogue with its settings, `{"name": "huber", "delta": 1.35}`.
        penalty: parameter → {penalty: strength}, as `penalty.terms`.
        reduction: of the loss over rows, for which these strengths hold.
        missing: the parts of scikit-learn's objective that are left out, as text.
        divides_weights: whether the mean over rows is Σ w·l / Σ w, not Σ w·l / N.
        class_weight: the class weights, if the estimator has any.
    """

    loss: Mapping[str, Any]
    penalty: Mapping[str, Strengths] = field(default_factory=dict)
    reduction: Literal["sum", "mean"] = "mean"
    missing: str = ""
    divides_weights: bool = False
    class_weight: ClassWeight | None = None

    def under(self, prefix: str) -> "Objective":
        """Return the objective with `prefix` in front of the parameters' names."""
        return dataclasses.replace(self, penalty={prefix + name: terms for name, terms in self.penalty.items()})

    def without(self, part: str) -> "Objective":
        """Return the objective with another part that is left out."""
        return dataclasses.replace(self, missing="; ".join(filter(None, [self.missing, part])))


def _objective(
    loss: Any, penalty: Mapping[str, Strengths] | None = None, missing: str = "", **fields: Any
) -> Objective:
    terms = {}
    for name, strengths in (penalty or {}).items():
        if nonzero := {kind: float(strength) for kind, strength in strengths.items() if strength}:
            terms[name] = nonzero
    return Objective({"name": loss} if isinstance(loss, str) else dict(loss), terms, missing=missing, **fields)


summed = functools.partial(_objective, reduction="sum")  # Σᵢ lᵢ + penalties
averaged = functools.partial(_objective, reduction="mean")  # 1/N · Σᵢ lᵢ + penalties


def class_weight(
    estimator: Any, of: Literal["rows", "positives"] = "rows", *, counts_weights: bool = False
) -> ClassWeight | None:
    """Return the class weights of an estimator's setting; None if it has none, or some for each of several labels."""
    setting = getattr(estimator, "class_weight", None)
    if isinstance(setting, str):
        return ClassWeight("balanced", of, counts_weights)
    if not setting or not isinstance(setting, Mapping):
        return None
    return ClassWeight(tuple(float(setting.get(label, 1)) for label in estimator.classes_.tolist()), of)


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
        if (resolved := objective.class_weight.resolved(count, index, weight)) is not None:
            sizes["class_weight"] = resolved
        else:
            objective = objective.without("its class weights, which depend on the training rows")
    return {name: getattr(objective, name) for name in ("loss", "penalty", "reduction", "missing")} | sizes


def factors_of_classes(task: str, classes: Sequence[Any] | None, data: Data | None) -> tuple[float, ...]:
    """Return the data's factors of a model's classes in the loss, () if the data have none."""
    weights = {} if data is None else data.class_weight
    if weights and classes is None:
        rule, actual = "Class weights need a classifier of one class per row.", f"a {task} model"
        raise DataError(rule, key="class_weight", got=actual, fix="Set {key}=null.")
    return tuple(weights.get(name, 1.0) for name in classes or () if weights)


def objective_notes(objective: Mapping[str, Any]) -> Sequence[str]:
    """Return a note of the loss and penalty that match an estimator's objective, and of the missing parts.

    >>> objective_notes({"loss": {"name": "huber", "delta": 2.7}, "penalty": {"w": {"l2": 0.5}}, "reduction": "sum"})
    ['scikit-learn fits it by huber (delta=2.7) summed over rows + 0.5·l2 of w; the automatic loss and penalty use it']
    """
    if not objective:
        return []
    loss, mean = dict(objective["loss"]), objective["reduction"] == "mean"
    settings = ", ".join(f"{key}={value}" for key, value in loss.items() if key != "name")
    text = loss["name"] + (f" ({settings})" if settings else "") + (" per row" if mean else " summed over rows")
    text += " with class weights" if "class_weight" in objective else ""
    for name, strengths in objective.get("penalty", {}).items():
        text += "".join(f" + {strength:.6g}·{kind} of {name}" for kind, strength in strengths.items())
    notes = [f"{FITTED_BY} {text}; {MATCHING}"]
    if missing := objective.get("missing"):
        notes = [f"{FITTED_BY} a variant of {text}; {MATCHING} without {missing}"]
    if "weight" in objective:
        notes.append("scikit-learn divides the weights of rows by their mean, and so does the automatic penalty")
    return notes
