"""The penalty `auto`: that of the source's objective, such as scikit-learn's."""

from collections.abc import Mapping

import onnx_ir as ir

from ortpipe.errors import PenaltyError
from ortpipe.facts import Facts
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.stages.penalty.penalties import charges


def add_terms_of_source(op: Builder, facts: Facts, total: ir.Value) -> tuple[ir.Value, list[str]]:
    """Add the source's penalties to a loss, each times the batch's rows if they are of one row of a sum; return a note.

    Without any, return the loss as it is.
    """
    terms, per_row, notes = _terms_of_source(facts)
    rows = None
    if terms and per_row:
        rows = op.cast(op.Squeeze(op.Shape(query.value(op.graph, facts.labels[0]), end=1)), total)
    for name, strengths in terms.items():
        for charge in charges(op, query.value(op.graph, name), strengths):
            total = op.Add(total, charge if rows is None else op.Mul(charge, rows))
    return total, notes


def _terms_of_source(facts: Facts) -> tuple[dict[str, Mapping[str, float]], bool, list[str]]:
    """Return the terms of parameters, whether they are of one row of a sum over rows, and a note."""
    terms, of_all_rows = facts.objective.get("penalty", {}), facts.objective.get("reduction") == "sum"
    # with sample weights the loss is Σ w·l or Σ w·l / N, and the source's may be Σ w·l / Σ w
    factor = facts.objective.get("weight", 1.0) if facts.sample_weight is not None else 1.0
    rows, per_row = facts.objective.get("rows"), facts.reduction == "sum"
    if of_all_rows and terms:
        if rows is None and not per_row:
            rule = "penalty=auto needs the number of rows that the estimator was fitted on."
            fix = "Set {@add_loss.reduction}=sum, or convert with data."
            raise PenaltyError(rule, got="strengths for the reduction sum, and a loss whose reduction is mean", fix=fix)
        factor, per_row = (factor / rows, per_row) if rows else (factor, False)  # as it is for one batch of all rows
    scaled: dict[str, Mapping[str, float]] = {
        name: {kind: x * factor for kind, x in strengths.items()} for name, strengths in terms.items()
    }
    return scaled, per_row, [f"penalty=auto: {in_words(scaled)}{' per row' if scaled and per_row else ''}"]


def in_words(terms: Mapping[str, Mapping[str, float]]) -> str:
    """Return terms as text.

    >>> in_words({"coefficient": {"l2": 0.5}}), in_words({})
    ('0.5·l2 of coefficient', 'nothing')
    """
    parts = [
        f"{strength:.6g}·{kind} of {name}" for name, strengths in terms.items() for kind, strength in strengths.items()
    ]
    return " + ".join(parts) or "nothing"
