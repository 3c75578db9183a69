"""penalty: a loss model → a loss model with Σ l1·|w| + l2·w² added to its loss."""

from collections.abc import Collection

from ortpipe.artifact import Artifact, Facts
from ortpipe.errors import PenaltyError
from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.settings import typed
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.penalties import charges

VERSION = 2


@typed
def penalty(artifact: Artifact, config: PenaltyConfig) -> Artifact:
    """Return the model whose loss is loss + Σ strength · penalty(w) over the chosen parameters.

    The penalty is added once per batch, whatever the loss's reduction. Without strengths the model stays as it is.

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
    if not terms:
        return artifact.next("penalty", VERSION)
    if facts.loss is None:
        raise PenaltyError("penalty adds to a loss.", got="a model without one", fix="Run add_loss first.")
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
    return artifact.next("penalty", VERSION, model=model)


def check(facts: Facts, config: PenaltyConfig) -> None:
    """Reject a pattern that matches no parameter."""
    for pattern in config.terms:
        _matched(pattern, facts)


def _matched(pattern: str, facts: Facts, initializers: Collection[str] = ()) -> list[str]:
    return query.select([pattern], facts.parameters, PenaltyError, "terms", initializers)
