"""The objective that scikit-learn fits an estimator by, in ortpipe's terms: a loss, and penalties of parameters."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

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
        totals = np.bincount(
            np.asarray(index, np.int64), weight if self.counts_weights else None, minlength=count
        ).astype(float)
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


def summed(loss: Any, penalty: Mapping[str, Strengths] | None = None, missing: str = "", **fields: Any) -> Objective:
    """Return Σᵢ lᵢ + penalties."""
    return _objective(loss, penalty, "sum", missing, **fields)


def averaged(loss: Any, penalty: Mapping[str, Strengths] | None = None, missing: str = "", **fields: Any) -> Objective:
    """Return 1/N · Σᵢ lᵢ + penalties."""
    return _objective(loss, penalty, "mean", missing, **fields)


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


def _objective(loss: Any, penalty: Any, reduction: Any, missing: str, **fields: Any) -> Objective:
    terms = {}
    for name, strengths in (penalty or {}).items():
        if nonzero := {kind: float(strength) for kind, strength in strengths.items() if strength}:
            terms[name] = nonzero
    return Objective({"name": loss} if isinstance(loss, str) else dict(loss), terms, reduction, missing, **fields)
