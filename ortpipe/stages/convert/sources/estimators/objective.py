"""The objective that scikit-learn fits an estimator by, in ortpipe's words: a loss, and penalties of parameters."""

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
        reduction: how the loss joins rows where these strengths hold.
        missing: what of scikit-learn's own is not in it, in words.
    """

    loss: Mapping[str, Any]
    penalty: Mapping[str, Strengths] = field(default_factory=dict)
    reduction: Literal["sum", "mean"] = "mean"
    missing: str = ""

    def under(self, prefix: str) -> "Objective":
        """Return it for parameters whose names begin with `prefix`."""
        return Objective(
            self.loss, {prefix + name: terms for name, terms in self.penalty.items()}, self.reduction, self.missing
        )


def summed(loss: Any, penalty: Mapping[str, Strengths] | None = None, missing: str = "") -> Objective:
    """Return Σᵢ lᵢ + penalties."""
    return _made(loss, penalty, "sum", missing)


def averaged(loss: Any, penalty: Mapping[str, Strengths] | None = None, missing: str = "") -> Objective:
    """Return 1/N · Σᵢ lᵢ + penalties."""
    return _made(loss, penalty, "mean", missing)


def missing(estimator: Any, other: str = "") -> str:
    """Return what an objective lacks where rows are weighted by their class."""
    return "; ".join(filter(None, [other, ROWS_WEIGHTS if getattr(estimator, "class_weight", None) else ""]))


def _made(loss: Any, penalty: Any, reduction: Any, missing: str) -> Objective:
    terms = {}
    for name, strengths in (penalty or {}).items():
        if kept := {kind: float(strength) for kind, strength in strengths.items() if strength}:
            terms[name] = kept
    return Objective({"name": loss} if isinstance(loss, str) else dict(loss), terms, reduction, missing)
