"""The note of a run about the objective that its estimator was fitted by."""

from collections.abc import Mapping, Sequence
from typing import Any

MATCHING_CONFIG = "add_loss=auto penalty=auto"


def objective_note(objective: Mapping[str, Any]) -> Sequence[str]:
    """Return a note of the loss and penalty that match an estimator's objective, and of what they leave out.

    >>> objective_note({"loss": {"name": "huber", "delta": 2.7}, "penalty": {"w": {"l2": 0.5}}, "reduction": "sum"})
    ['scikit-learn fits it by huber (delta=2.7) summed over rows + 0.5·l2 of w: add_loss=auto penalty=auto']
    """
    if not objective:
        return []
    loss, mean = dict(objective["loss"]), objective["reduction"] == "mean"
    settings = ", ".join(f"{key}={value}" for key, value in loss.items() if key != "name")
    text = loss["name"] + (f" ({settings})" if settings else "") + (" per row" if mean else " summed over rows")
    for name, strengths in objective.get("penalty", {}).items():
        text += "".join(f" + {strength:.6g}·{kind} of {name}" for kind, strength in strengths.items())
    if missing := objective.get("missing"):
        return [f"nearest to how scikit-learn fits it: {text}: {MATCHING_CONFIG}; not in it: {missing}"]
    return [f"scikit-learn fits it by {text}: {MATCHING_CONFIG}"]
