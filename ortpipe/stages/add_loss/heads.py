"""Several predictions: the loss of an ensemble's members, and losses of heads, outputs with their own labels.

The label of head h is `label_<output>`: loss = Σₕ λₕ·lossₕ, each with its own loss, elements and padding, and λ its
`weight`. The row weights wᵢ apply to all of them. An ensemble's loss is the mean of its members' losses.
"""

import dataclasses

import onnx_ir as ir

from ortpipe.errors import under
from ortpipe.facts import Facts
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.stages.add_loss.config import AddLossConfig, HeadLoss
from ortpipe.stages.add_loss.losses import LOSSES, Scores
from ortpipe.stages.add_loss.stage import LossPart, part_of, terms_of


def add_heads(op: Builder, facts: Facts, config: AddLossConfig, part: LossPart) -> LossPart:
    """Write the losses of heads; return the prediction's part with the sum of all losses, in the type of its own."""
    parts, heads = {"": part}, dict(facts.heads)
    for head, head_facts in list(facts.predictions.items())[1:]:
        with under(*config.path(head)):
            parts[head] = part_of(op, head_facts, config, head, part.weight)
        heads[head] = dataclasses.replace(heads[head], **parts[head].facts)
    total, words = part.loss, list[str]()
    for head, head_facts in facts.predictions.items():
        of_head, loss = config.of(head), parts[head].loss
        term = loss if of_head.weight == 1 else op.Mul(loss, op.like(of_head.weight, loss))
        if head:
            term = op.Add(total, term if term.dtype == total.dtype else op.cast(term, total))
        term.type, term.shape = part.loss.type, ir.Shape([])
        total = term
        words.append(f"{of_head.weight:g} · {LOSSES.name_of(type(of_head.loss))} of {head_facts.prediction!r}")
    notes = [note for p in parts.values() for note in p.notes]
    notes += [f"loss = {' + '.join(words)}"] if heads else []
    return part._replace(loss=total, facts={**part.facts, "heads": heads}, notes=notes)


def terms_of_members(op: Builder, facts: Facts, config: HeadLoss, label: ir.Value, scores: Scores) -> ir.Value:
    """Return the mean over members of the loss's terms [N, K], for each member's scores [N, members, K]."""
    members = query.value(op.graph, str(facts.members))
    member_scores = scores._replace(prediction=members, logits=None if facts.task == "regression" else members)
    member_label = op.Unsqueeze(label, [1])
    assert label.shape is not None
    member_label.shape = ir.Shape([label.shape[0], 1, label.shape[1]])
    terms = terms_of(op, facts, config, member_label, member_scores)
    mean: ir.Value = op.ReduceMean(terms, [1], keepdims=0)
    mean.shape = ir.Shape([label.shape[0], terms.shape[-1] if terms.shape is not None else None])
    return mean
