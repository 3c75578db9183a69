"""penalty: a loss model → a loss model with Σ l1·|w| + l2·w² added to its loss."""

from collections.abc import Collection, Mapping

import onnx_ir as ir

from ortpipe.artifact import Artifact, Facts
from ortpipe.errors import PenaltyError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.settings import typed
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.penalties import charges

VERSION = 4


@typed
def penalty(artifact: Artifact, config: PenaltyConfig) -> Artifact:
    """Return the model whose loss is loss + Σ strength · penalty(w) over the chosen parameters.

    The penalty is added once per batch, for every reduction of the loss. The penalty `auto` is that of the source's
    objective over all rows: if the loss is a sum, each batch adds the share of its rows. Without strengths, the model
    is returned unchanged.

    Raises:
        PenaltyError: the model has no loss, or a pattern matches no parameter.
    """
    facts = artifact.facts
    terms = [
        (name, strengths)
        for pattern, strengths in config.terms.items()
        for name in _matched(pattern, facts, artifact.initializers)
        if any(strengths.values())
    ]
    auto_terms, per_row = _objective_terms(facts) if config.auto else ({}, False)
    words = f"{in_words(auto_terms)}{' per row' if auto_terms and per_row else ''}"
    notes = [f"penalty=auto: {words}"] if config.auto else []
    if not terms and not auto_terms:
        return artifact.next("penalty", VERSION, notes=notes)
    if facts.loss is None:
        raise PenaltyError("penalty needs a model with a loss.", got="a model without one", fix="Run add_loss first.")
    model = artifact.ir_model()
    graph, op = model.graph, Builder(model.graph, "penalty")
    total = loss = query.value(graph, facts.loss)
    rows = _rows(op, facts, loss) if auto_terms and per_row else None
    for name, strengths, factor in (
        *((*term, None) for term in terms),
        *((*term, rows) for term in auto_terms.items()),
    ):
        for charge in charges(op, query.value(graph, name), strengths):
            total = op.Add(total, charge if factor is None else op.Mul(charge, factor))
    total.type, total.shape = loss.type, loss.shape
    graph.outputs[graph.outputs.index(loss)] = total
    op.rename(loss, f"{facts.loss}/data")
    total.name = facts.loss
    return artifact.next("penalty", VERSION, model=model, notes=notes)


def _objective_terms(facts: Facts) -> tuple[dict[str, Mapping[str, float]], bool]:
    """Return the penalty terms of the source's objective, and whether they are of one row of a sum over rows."""
    terms, of_all_rows = facts.objective.get("penalty", {}), facts.objective.get("reduction") == "sum"
    # with sample weights the loss is Σ w·l or Σ w·l / N, and the source's may be Σ w·l / Σ w
    factor = facts.objective.get("weight", 1.0) if facts.sample_weight is not None else 1.0
    rows, summed = facts.objective.get("rows"), facts.reduction == "sum"
    if of_all_rows and terms:
        if rows is None and not summed:
            rule = "penalty=auto needs the number of rows that the estimator was fitted on."
            fix = "Set {@add_loss.reduction}=sum, or convert with data."
            raise PenaltyError(rule, got="strengths for the reduction sum, and a loss whose reduction is mean", fix=fix)
        if rows is None:
            return _scaled(factor, terms), False  # right for one batch of all rows
        factor /= rows
    return _scaled(factor, terms), summed


def _rows(op: Builder, facts: Facts, like: ir.Value) -> ir.Value:
    """Return the number of rows of a batch, a scalar."""
    return op.cast(op.Squeeze(op.Shape(query.value(op.graph, facts.labels[0]), end=1)), like)


def _scaled(factor: float, terms: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    return {
        name: {kind: strength * factor for kind, strength in strengths.items()} for name, strengths in terms.items()
    }


def in_words(terms: Mapping[str, Mapping[str, float]]) -> str:
    """Return terms as text.

    >>> in_words({"coefficient": {"l2": 0.5}}), in_words({})
    ('0.5·l2 of coefficient', 'nothing')
    """
    parts = [
        f"{strength:.6g}·{kind} of {name}" for name, strengths in terms.items() for kind, strength in strengths.items()
    ]
    return " + ".join(parts) or "nothing"


def check(facts: Facts, config: PenaltyConfig) -> None:
    """Reject a pattern that matches no parameter."""
    for pattern in config.terms:
        _matched(pattern, facts)


def _matched(pattern: str, facts: Facts, initializers: Collection[str] = ()) -> list[str]:
    return query.select([pattern], facts.parameters, PenaltyError, "terms", initializers)
