"""The objective that scikit-learn fits an estimator by, in ortpipe's terms: a loss, and penalties of parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Strengths = Mapping[str, float]
ROWS_WEIGHTS = "class_weight: give rows weights for it (data.source.sample_weight, add_loss.sample_weight=true)"


@dataclass(frozen=True)
class Objective:
    """A loss and penalties whose minimum is the fitted estimator.

    Attributes:
        loss: a member of add_loss's catalogue with its settings, `{"name": "huber", "delta": 1.35}`.
        penalty: parameter → {penalty: strength}, as `penalty.terms`.
        reduction: of the loss over rows, for which these strengths hold.
        missing: the parts of scikit-learn's objective that are left out, as text.
    """

    loss: Mapping[str, Any]
    penalty: Mapping[str, Strengths] = field(default_factory=dict)
    reduction: Literal["sum", "mean"] = "mean"
    missing: str = ""

    def under(self, prefix: str) -> "Objective":
        """Return the objective with `prefix` in front of the parameters' names."""
        return Objective(
            self.loss, {prefix + name: terms for name, terms in self.penalty.items()}, self.reduction, self.missing
        )


def summed(loss: Any, penalty: Mapping[str, Strengths] | None = None, missing: str = "") -> Objective:
    """Return Σᵢ lᵢ + penalties."""
    return _objective(loss, penalty, "sum", missing)


def averaged(loss: Any, penalty: Mapping[str, Strengths] | None = None, missing: str = "") -> Objective:
    """Return 1/N · Σᵢ lᵢ + penalties."""
    return _objective(loss, penalty, "mean", missing)


def missing(estimator: Any, further: str = "") -> str:
    """Return the missing parts of an objective, with the class weights of rows if there are any."""
    return "; ".join(filter(None, [further, ROWS_WEIGHTS if getattr(estimator, "class_weight", None) else ""]))


def _objective(loss: Any, penalty: Any, reduction: Any, missing: str) -> Objective:
    terms = {}
    for name, strengths in (penalty or {}).items():
        if nonzero := {kind: float(strength) for kind, strength in strengths.items() if strength}:
            terms[name] = nonzero
    return Objective({"name": loss} if isinstance(loss, str) else dict(loss), terms, reduction, missing)
