"""penalty: a loss model → a loss model with Σ l1·|w| + l2·w² added to its loss."""

from collections.abc import Collection, Mapping

from ortpipe.artifact import Artifact, Facts
from ortpipe.errors import PenaltyError
from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.settings import typed
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.penalties import charges

VERSION = 3


@typed
def penalty(artifact: Artifact, config: PenaltyConfig) -> Artifact:
    """Return the model whose loss is loss + Σ strength · penalty(w) over the chosen parameters.

    The penalty is added once per batch, whatever the loss's reduction. Without strengths the model does not change.

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
    auto_terms = _objective_terms(facts) if config.auto else {}
    notes = [f"penalty=auto: {in_words(auto_terms)}"] if config.auto else []
    terms += auto_terms.items()
    if not terms:
        return artifact.next("penalty", VERSION, notes=notes)
    if facts.loss is None:
        raise PenaltyError("penalty needs a model with a loss.", got="a model without one", fix="Run add_loss first.")
    model = artifact.ir_model()
    graph, op = model.graph, Builder(model.graph, "penalty")
    total = loss = query.value(graph, facts.loss)
    for name, strengths in terms:
        for charge in charges(op, query.value(graph, name), strengths):
            total = op.Add(total, charge)
    total.type, total.shape = loss.type, loss.shape
    graph.outputs[graph.outputs.index(loss)] = total
    op.rename(loss, f"{facts.loss}/data")
    total.name = facts.loss
    return artifact.next("penalty", VERSION, model=model, notes=notes)


def _objective_terms(facts: Facts) -> dict[str, Mapping[str, float]]:
    """Return the penalty terms of the source's objective, scaled to the loss's reduction."""
    terms, source_reduction = facts.objective.get("penalty", {}), facts.objective.get("reduction")
    # with sample weights the loss is Σ w·l or Σ w·l / N, and the source's Σ w·l / Σ w
    factor = facts.objective.get("weight", 1.0) if facts.sample_weight is not None else 1.0
    if source_reduction == facts.reduction or not terms:
        return _scaled(factor, terms)
    rows = facts.objective.get("rows")
    if rows is None:
        raise PenaltyError(
            "penalty=auto needs the number of rows that the estimator was fitted on.",
            got=f"strengths for add_loss.reduction={source_reduction}, and a loss whose reduction is {facts.reduction}",
            fix=f"Set add_loss.reduction={source_reduction}, or convert with data.",
        )
    return _scaled(factor * rows if source_reduction == "mean" else factor / rows, terms)


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
