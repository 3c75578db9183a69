"""penalty: a loss model → a loss model with penalties of its parameters added: l1, l2, group, or a user's own."""

from typing import TYPE_CHECKING

from ortpipe.artifact import Artifact
from ortpipe.doors import later
from ortpipe.errors import PenaltyError
from ortpipe.graph.core import query, selection
from ortpipe.graph.core.builder import Builder
from ortpipe.settings import typed
from ortpipe.stages.penalty.config import VERSION, PenaltyConfig
from ortpipe.stages.penalty.penalties import charges

if TYPE_CHECKING:
    from ortpipe.stages.penalty.of_source import add_terms_of_source
else:
    later(__name__)


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
        for name in selection.select([pattern], facts.parameters, PenaltyError, "terms", artifact.initializers)
        if any(strengths.values())
    ]
    if not terms and not (config.auto and facts.objective.get("penalty")):
        return artifact.next("penalty", VERSION, notes=["penalty=auto: nothing"] if config.auto else [])
    if facts.loss is None:
        raise PenaltyError("penalty needs a model with a loss.", got="a model without one", fix="Run add_loss first.")
    model = artifact.ir_model()
    graph, op = model.graph, Builder(model.graph, "penalty")
    total = loss = query.value(graph, facts.loss)
    for name, strengths in terms:
        for charge in charges(op, query.value(graph, name), strengths):
            total = op.Add(total, charge)
    total, notes = add_terms_of_source(op, facts, total) if config.auto else (total, [])
    if total is loss:
        return artifact.next("penalty", VERSION, notes=notes)
    total.type, total.shape = loss.type, loss.shape
    graph.outputs[graph.outputs.index(loss)] = total
    op.rename(loss, f"{facts.loss}/data")
    total.name = facts.loss
    return artifact.next("penalty", VERSION, model=model, notes=notes)
