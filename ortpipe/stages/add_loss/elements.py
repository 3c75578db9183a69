"""Losses beyond one of rows [N, K]: of a row's elements E… (steps, pixels), of members and heads, with class weights.

The row's loss is Σₑ cᵢₑ Σₖ tᵢₑₖ over its elements e, divided by max(1, Σₑ cᵢₑ) if `elements` is `mean`: cᵢₑ is 0 where
the label is `padding`, else 1. (With both `sum`, cross-entropy is torch.nn.functional.cross_entropy of reduction="sum"
and ignore_index=padding; that of "mean" divides by Σᵢₑ cᵢₑ, not by N.) Labels are numbers [N, E…, K] for a regression,
class indices [N, E…, 1] for a classifier, −1 for padding, whatever axis of the prediction holds its K columns. A
sequence's labels [N, L, 1] are shorter than its T steps; a row's elements are then its labels.

Heads are outputs with their own labels. The label of head h is `label_<output>`: loss = Σₕ λₕ·lossₕ, each with its own
loss, elements and padding, and λ its `weight`. The row weights wᵢ apply to all of them. An ensemble's loss is the mean
of its members' losses.
"""

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import LossError, under
from ortpipe.facts import Facts
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.stages.add_loss.config import AddLossConfig, HeadLoss
from ortpipe.stages.add_loss.early import path_of
from ortpipe.stages.add_loss.losses import LOSSES, Scores
from ortpipe.stages.add_loss.stage import LossPart, is_of_rows, label_input, terms_of, with_columns, write_loss


def terms_of_more(
    op: Builder, facts: Facts, config: AddLossConfig, head: str, name: str, scores: Scores
) -> tuple[Scores, ir.Value, ir.Value, Any, dict[str, Any]]:
    """Return scores, label, the terms of rows [N, K] with their number of columns, and facts about the label."""
    of_head, about = config.of(head), {"class_axis": facts.class_axis, "blank": None}
    of_rows = is_of_rows(facts, of_head, scores.prediction)
    if not of_rows:
        scores, about = _of_elements(op, facts, of_head, scores)
    sequences = about["blank"] is not None
    label = label_input(op, facts, name, scores, [None] if sequences else None)  # sequences have any length
    y, counts = (label, None) if of_rows else _cleaned(op, of_head, label, scores)
    if facts.members is not None:
        terms = _terms_of_members(op, facts, of_head, y, scores)
    else:
        terms = (_terms_of_sequences if sequences else terms_of)(op, of_head, y, scores)
    if facts.class_weight or "class_weight" in facts.objective:
        terms = _weighted_by_class(op, y, terms, facts)
    terms, columns = with_columns(op, facts, config, terms)
    return scores, label, terms if of_rows else _per_row(op, of_head, y, counts, terms), columns, about


def _of_elements(op: Builder, facts: Facts, config: HeadLoss, scores: Scores) -> tuple[Scores, dict[str, Any]]:
    """Return scores of shape [N, E…, K], their class axis, by default the last one, and the blank of sequences."""
    loss: Any = config.loss
    prediction, logits = scores.prediction, scores.logits
    rank = prediction.shape.rank() if prediction.shape is not None else 0
    if not rank:
        rule = "A loss needs a prediction of known rank, one entry per row."
        fix = "Choose another output with {@convert.source.prediction}."
        raise LossError(rule, got=f"{prediction.name!r} of shape {prediction.shape}", fix=fix)
    axis = max(1, rank - 1) if facts.class_axis is None and rank != 2 else facts.class_axis
    moved = _classes_last(op, prediction, rank, axis)
    if logits is not None:
        logits = moved if logits is prediction else _classes_last(op, logits, rank, axis)
    scores, sequences = scores._replace(prediction=moved, logits=logits), getattr(loss, "of_sequences", False)
    if sequences and len(scores.sizes) != 3:
        raise LossError(
            "CTC needs the steps of a sequence, a prediction [N, T, K].",
            got=f"{facts.prediction!r}, whose rows have {len(scores.sizes) - 2} axes besides that of the classes",
            fix="Choose add_loss=cross_entropy, another output with {@convert.source.prediction}, or set the axis of "
            f"the classes with {{@{facts.settings}.class_axis}}.",
        )
    return scores, {"class_axis": axis, "blank": loss.index(scores.classes or 0) if sequences else None}


def _classes_last(op: Builder, value: ir.Value, rank: int, axis: int | None) -> ir.Value:
    if axis is None or axis == rank - 1:
        return value
    order = [*(i for i in range(rank) if i != axis), *([axis] if axis < rank else [])]
    moved: ir.Value = op.Transpose(value, perm=order) if axis < rank else op.Unsqueeze(value, [-1])
    if value.shape is not None:
        moved.shape = ir.Shape([*(value.shape[i] for i in order), *([1] if axis == rank else [])])
    return moved


def _cleaned(op: Builder, config: HeadLoss, label: ir.Value, scores: Scores) -> tuple[ir.Value, ir.Value | None]:
    """Return labels as the loss reads them, and a mask [N, E…, 1] of elements without padding."""
    loss: Any = config.loss
    if getattr(loss, "of_sequences", False):
        return loss.ended(op, label, scores), None
    y = _as_elements(op, label, scores.prediction)
    if config.padding is None:
        return y, None
    padding: Any = config.padding if y.dtype == scores.dtype else -1
    missing = op.Equal(y, op.like(padding, y))
    if y.shape is None or y.shape[-1] != 1:
        missing = op.Greater(op.ReduceSum(op.Cast(missing, to=ir.DataType.FLOAT), [-1], keepdims=1), 0)
    counts = op.Not(missing)
    without = op.Where(counts, y, op.like(0, y))
    without.shape = y.shape
    return without, counts


def _as_elements(op: Builder, label: ir.Value, prediction: ir.Value) -> ir.Value:
    """Return labels reshaped to the prediction's elements, so that dynamic sizes are not broadcast."""
    assert label.shape is not None
    if all(isinstance(size, int) for size in list(label.shape)[1:-1]):
        return label
    last = label.shape[-1]
    sizes = op.Concat(op.Shape(prediction, end=-1), op.const(np.array([last if isinstance(last, int) else -1])), axis=0)
    aligned: ir.Value = op.Reshape(label, sizes)
    aligned.shape = label.shape
    return aligned


def _per_row(op: Builder, config: HeadLoss, y: ir.Value, counts: ir.Value | None, terms: ir.Value) -> ir.Value:
    """Return the terms of rows [N, K] from those of their elements [N, E…, K], without padded elements."""
    if getattr(config.loss, "of_sequences", False):
        return terms  # they are those of rows
    axes = [*range(1, y.shape.rank() - 1)] if y.shape is not None else []
    if counts is not None:  # not a product: a padded element's term may be infinite
        terms = op.Where(counts, terms, op.like(0, terms))
    if not axes:
        return terms
    if config.elements == "mean" and counts is None:
        return op.ReduceMean(terms, axes, keepdims=0)
    total: ir.Value = op.ReduceSum(terms, axes, keepdims=0)
    if config.elements == "sum":
        return total
    return op.Div(total, op.Max(op.ReduceSum(op.cast(counts, terms), axes, keepdims=0), op.like(1, terms)))


def _terms_of_sequences(op: Builder, config: HeadLoss, label: ir.Value, scores: Scores) -> ir.Value:
    """Return the loss of each row [N, 1], divided by its number of labels if `elements` is `mean`."""
    loss, terms = config.loss, terms_of(op, config, label, scores)
    if config.elements == "mean":
        terms = op.Div(terms, op.Max(op.cast(loss.lengths(op, label), terms), op.like(1, terms)))  # type: ignore[attr-defined]
    return terms


def _weighted_by_class(op: Builder, label: ir.Value, terms: ir.Value, facts: Facts) -> ir.Value:
    """Return the terms [N, E…, K] times the class weights of the data and of the source.

    Weights of columns, [negatives', positives'], count where each class or label has a term of its own. Elsewhere the
    weight of a row is that of its class as a positive.
    """
    if terms.dtype is None:
        return terms
    numbers = terms.dtype.numpy()
    kind, shape, weights = terms.type, terms.shape, np.array(facts.class_weight or 1.0, numbers)
    source = np.array(facts.objective.get("class_weight", 1.0), numbers)
    if source.ndim == 2 and shape is not None and shape[-1] == len(source):
        one_hot = label if facts.classes is None else op.cast(op.Equal(label, op.const(np.arange(len(source)))), terms)
        negative, positive = source.T
        terms = op.Mul(terms, op.Add(op.Mul(one_hot, op.const(positive - negative)), op.const(negative)))
    else:
        weights = weights * (source[:, 1] if source.ndim == 2 else source)
    if weights.ndim and facts.classes is not None:
        terms = op.Mul(terms, op.Gather(op.const(weights), label))
    terms.type, terms.shape = kind, shape
    return terms


def add_heads(op: Builder, facts: Facts, config: AddLossConfig, part: LossPart) -> LossPart:
    """Write the losses of heads; return the prediction's part with the sum of all losses, in the type of its own."""
    parts, heads = {"": part}, dict(facts.heads)
    for head, head_facts in list(facts.predictions.items())[1:]:
        with under(*path_of(config, head)):
            parts[head] = write_loss(op, head_facts, config, head, part.weight)
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


def _terms_of_members(op: Builder, facts: Facts, config: HeadLoss, label: ir.Value, scores: Scores) -> ir.Value:
    """Return the mean over members of the loss's terms [N, K], for each member's scores [N, members, K]."""
    members = query.value(op.graph, str(facts.members))
    member_scores = scores._replace(prediction=members, logits=None if facts.task == "regression" else members)
    member_label = op.Unsqueeze(label, [1])
    assert label.shape is not None
    member_label.shape = ir.Shape([label.shape[0], 1, label.shape[1]])
    terms = terms_of(op, config, member_label, member_scores)
    mean: ir.Value = op.ReduceMean(terms, [1], keepdims=0)
    mean.shape = ir.Shape([label.shape[0], terms.shape[-1] if terms.shape is not None else None])
    return mean
