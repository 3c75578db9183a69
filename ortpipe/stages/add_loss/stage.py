"""add_loss: a forward model → a loss model."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe import own
from ortpipe.artifact import Artifact, Facts
from ortpipe.data.rows import Data
from ortpipe.errors import LossError, nearest, under
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.check import infer
from ortpipe.graph.core.garbage import gc_paused
from ortpipe.settings import typed
from ortpipe.stages.add_loss.class_weight import check_class_weight, weighted_by_class
from ortpipe.stages.add_loss.config import AddLossConfig, HeadLoss
from ortpipe.stages.add_loss.domains import check_labels
from ortpipe.stages.add_loss.losses import LOSSES, Scores
from ortpipe.stages.add_loss.losses.auto import Auto
from ortpipe.stages.add_loss.losses.ctc import CTC

VERSION = 5
LOG = "the prediction is the logarithm of the mean (link=log): the trained model predicts log μ, metrics use μ"


@typed
@gc_paused()
def add_loss(artifact: Artifact, config: AddLossConfig, *, data: Data | None = None) -> Artifact:
    """Return the model with a label input, an optional weight input, and a scalar loss as its first output.

    loss = Σᵢ wᵢ·lᵢ, divided by N if the reduction is `mean`. The row's loss lᵢ is Σₖ tᵢₖ over the loss's terms t; with
    elements e (steps, pixels) it is Σₑ cᵢₑ Σₖ tᵢₑₖ, divided by max(1, Σₑ cᵢₑ) if `elements` is `mean`: cᵢₑ is 0 where
    the label is `padding`, else 1. (With both `sum`, cross-entropy is torch.nn.functional.cross_entropy of
    reduction="sum" and ignore_index=padding; that of "mean" divides by Σᵢₑ cᵢₑ, not by N.) Labels are numbers
    [N, E…, K] for a regression, class indices [N, E…, 1] (int64) for a classifier, −1 for padding, whatever axis of the
    prediction holds its K columns; E… are the elements, none for a prediction [N, K]. New names are unique in the
    graph; the forward outputs stay.

    Heads are further outputs h with their own label, `label_<output>`: loss = Σₕ λₕ·lossₕ, each of them the sum or mean
    above, with its own loss, elements and padding, and λ its `weight`. The row weights wᵢ apply to all of them.

    Raises:
        LossError: the loss does not fit the model's task or the labels of `data`, or the prediction's rank is unknown.

    >>> from sklearn.linear_model import LinearRegression
    >>> from ortpipe.stages.convert.stage import convert
    >>> from ortpipe.stages.add_loss.losses.l2 import L2
    >>> model = add_loss(convert(LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0])), AddLossConfig(L2()))
    >>> [output.name for output in model.model.graph.output]
    ['loss', 'prediction']
    """
    facts, requested = artifact.facts, config
    check(facts, config, data=data)
    config = resolved(facts, config)
    model = artifact.ir_model()
    graph, parts, notes = model.graph, dict[str, _Part](), list[str]()
    if isinstance(requested.loss, Auto):
        reason = "" if "loss" in facts.objective else f", for the task {facts.task}: the model names no loss"
        notes.append(f"the loss auto is {_in_words(config.loss)}{reason}")
    op = Builder(graph, "loss")
    weight: ir.Value | None = None
    for head, head_facts in facts.predictions.items():
        with under(*_key(head, config)):
            parts[head] = part = _part(op, head_facts, config, head, weight)
        weight = part.weight
        if part.facts["link"] == "log":
            notes.append(f"{LOG}{f', of head {head!r}' if head else ''}")
    loss = _weighted_sum(op, [(parts[head].loss, config.of(head).weight) for head in parts])
    op.rename(loss, config.loss_name)
    graph.outputs.insert(0, loss)
    if facts.heads:
        losses = [
            f"{config.of(head).weight:g} · {_name(config.of(head))} of {head_facts.prediction!r}"
            for head, head_facts in facts.predictions.items()
        ]
        notes.append(f"loss = {' + '.join(losses)}")
    heads = {name: dataclasses.replace(head, **parts[name].facts) for name, head in facts.heads.items()}
    losses_of = [type(config.of(head).loss) for head in parts]
    with contextlib.ExitStack() as stack:  # errors in their nodes appear only when the whole graph is checked
        for loss_type in dict.fromkeys(losses_of):
            stack.enter_context(own.blamed(loss_type, "loss", LossError))
        return artifact.next(
            "add_loss",
            VERSION,
            model=model,
            loss=loss.name,
            sample_weight=weight.name if weight is not None else None,
            reduction=config.reduction,
            heads=heads,
            **parts[""].facts,
            notes=notes,
        )


class _Part(NamedTuple):
    """The loss of one prediction in a loss model."""

    loss: ir.Value  # a scalar
    weight: ir.Value | None  # the input of row weights
    facts: dict[str, Any]  # the prediction's or head's


def _part(op: Builder, facts: Facts, loss_config: AddLossConfig, head: str, weight: ir.Value | None) -> _Part:
    """Write a label input and the loss of one prediction, whose facts are `facts`."""
    graph, config = op.graph, loss_config.of(head)
    output = query.value(graph, facts.prediction)
    rank, axis = _layout(facts, output)
    prediction = logits = classes_last(op, output, rank, axis)
    if facts.logits not in (None, facts.prediction):
        logits = classes_last(op, query.value(graph, str(facts.logits)), rank, axis)
    scores = Scores(
        prediction,
        logits if facts.logits is not None else None,
        len(facts.classes) if facts.classes is not None else None,
        bool(facts.opposite),
        tuple(query.value(graph, name) for name in facts.inputs),
    )
    rows, *elements, columns = _sizes(prediction)
    sequences = config.loss if isinstance(config.loss, CTC) else None
    if sequences is not None:
        elements = _label_sizes(elements, facts)
    name = f"{loss_config.label_name}_{head}" if head else loss_config.label_name
    if facts.classes is not None and facts.task != "multilabel":
        label = op.input(name, ir.DataType.INT64, [rows, *elements, 1])
    else:
        label = op.input(name, _dtype(prediction), [rows, *elements, columns])
    y, counts = label, None
    if sequences is not None:
        y = sequences.ended(op, label, scores)
    else:
        y = _as_elements(op, label, prediction)
        if config.padding is not None:
            y, counts = _unpadded(op, y, config.padding if y.dtype == prediction.dtype else -1)
    terms = _terms(op, y, scores, config) if facts.members is None else _member_terms(op, y, scores, facts, config)
    terms = weighted_by_class(op, y, terms, facts)
    if sequences is not None and config.elements == "mean":  # a row's elements are its labels, not its steps
        terms = op.Div(terms, op.Max(op.cast(sequences.lengths(op, y), terms), op.like(1, terms)))
    terms_per_row: Any = 1 if facts.task == "binary" else terms.shape[-1] if terms.shape is not None else None
    if loss_config.reduction == "mean" and not isinstance(terms_per_row, int):
        terms, terms_per_row = op.ReduceSum(terms, [-1], keepdims=1), 1
    terms = _per_row(op, terms, counts, 0 if sequences is not None else len(elements), config)  # [N, K]
    if loss_config.sample_weight:
        weight = weight if weight is not None else op.input(loss_config.weight_name, _dtype(prediction), [rows, 1])
        terms = op.Mul(terms, weight if weight.dtype == _dtype(prediction) else op.cast(weight, prediction))
    if loss_config.reduction == "sum":
        loss = op.ReduceSum(terms, keepdims=0)
    else:  # the mean over N rows of the sum over K terms: K times the mean of all
        loss = op.ReduceMean(terms, keepdims=0)
        loss = op.Mul(loss, op.like(terms_per_row, prediction)) if terms_per_row != 1 else loss
    loss.type, loss.shape = ir.TensorType(_dtype(prediction)), ir.Shape([])
    link = "log" if getattr(config.loss, "link", None) == "log" else None
    blank = None if sequences is None else sequences.index(scores.classes or 0)
    label_facts = {"label": label.name, "class_axis": axis, "padding": config.padding, "blank": blank, "link": link}
    return _Part(loss, weight, label_facts)


def _weighted_sum(op: Builder, losses: Sequence[tuple[ir.Value, float]]) -> ir.Value:
    """Return Σ weight · loss, in the type of the first one."""
    total: ir.Value | None = None
    for loss, weight in losses:
        term = loss if weight == 1 else op.Mul(loss, op.like(weight, loss))
        if total is not None:
            term = op.Add(total, term if term.dtype == total.dtype else op.cast(term, total))
        term.type, term.shape = ir.TensorType(_dtype(losses[0][0] if total is not None else loss)), ir.Shape([])
        total = term
    assert total is not None
    return total


def _member_terms(op: Builder, label: ir.Value, scores: Scores, facts: Facts, config: HeadLoss) -> ir.Value:
    """Return the mean over members of the loss's terms [N, K], for each member's scores [N, members, K]."""
    members = query.value(op.graph, str(facts.members))
    member_scores = scores._replace(prediction=members, logits=None if facts.task == "regression" else members)
    member_label = op.Unsqueeze(label, [1])
    assert label.shape is not None
    member_label.shape = ir.Shape([label.shape[0], 1, label.shape[1]])
    terms = _terms(op, member_label, member_scores, config)
    mean = op.ReduceMean(terms, [1], keepdims=0)
    mean.shape = ir.Shape([label.shape[0], terms.shape[-1] if terms.shape is not None else None])
    return mean


def _terms(op: Builder, label: ir.Value, scores: Scores, config: HeadLoss) -> ir.Value:
    """Return the terms that the loss writes, checked, for a user's own loss may return anything."""
    loss = type(config.loss)
    with op.formulas(), own.blamed(loss, "loss", LossError):
        terms: Any = config.loss(op, label, scores)
    if not isinstance(terms, ir.Value) or terms.dtype not in (None, scores.prediction.dtype):
        raise LossError(
            "A loss must return its terms, a value of the graph with the prediction's type.",
            got=f"{own.path_of(loss)} returned {terms!r:.200}",
            fix="Write it with `op`, or with + − * / of label and scores.prediction; op.cast(x, like) changes a type.",
        )
    if not own.is_own(loss):
        return terms
    with own.blamed(loss, "loss", LossError):
        infer(ir.Model(op.graph, ir_version=10))
    if not isinstance(config.loss, CTC) and not _has_rows(terms, scores.prediction):
        raise LossError(
            "A loss must return terms for each row, with as many axes as the prediction, rows first.",
            got=f"{own.path_of(loss)} returned {terms.shape} for a prediction {scores.prediction.shape}",
            fix="Do not sum or average over rows (ortpipe does, with their weights); reduce with keepdims=1.",
        )
    return terms


def _has_rows(terms: ir.Value, prediction: ir.Value) -> bool:
    """Return whether terms may be [N, …, K] for a prediction [N, …, C]; [N, N] means that a label lost an axis."""
    if terms.shape is None or prediction.shape is None:
        return True
    if len(terms.shape) != len(prediction.shape) or isinstance(terms.shape[0], int) != isinstance(
        prediction.shape[0], int
    ):
        return False
    rows, last = prediction.shape[0], terms.shape[-1]
    return isinstance(last, int) or last != rows or prediction.shape[-1] == rows


def check(facts: Facts, config: AddLossConfig, *, data: Data | None = None) -> Facts:
    """Reject a loss that does not fit its task or the labels, and padding that is a class.

    Return the facts with those about labels, for the checks of later stages.
    """
    config = resolved(facts, config)
    check_class_weight(facts, config.loss, data)
    first = None if data is None else data.train.head(1)
    names_by_key = {"{@add_loss.heads}": config.heads, "{@data.source.heads}": {} if first is None else first.heads}
    for key, names in names_by_key.items():
        if unknown := [name for name in names if name not in facts.heads]:
            near = f"{nearest(unknown[0], facts.heads)} Or name" if facts.heads else "Name"
            rule = f"{key} must name further outputs of the model, which {{@convert.source.heads}} names, too."
            fix = f"{near} the output there: +{{@convert.source.heads.{unknown[0]}}}={{}}."
            raise LossError(rule, key="heads" if names is config.heads else None, got=repr(unknown[0]), fix=fix)
    if first is not None:
        for name in facts.heads:
            first.of(name)  # raises if rows lack that label
    label_facts = {}
    for head, head_facts in facts.predictions.items():
        with under(*_key(head, config)):
            label_facts[head] = _checked(head_facts, config.of(head), None if data is None else data.of(head), head)
    heads = {name: dataclasses.replace(head, **label_facts[name]) for name, head in facts.heads.items()}
    return dataclasses.replace(facts, **label_facts[""], heads=heads)


def _checked(facts: Facts, config: HeadLoss, data: Data | None, head: str) -> dict[str, Any]:
    """Check the loss of one prediction; return the facts about its labels."""
    class_labels, blank = facts.classes or (), None
    if isinstance(config.loss, CTC) and class_labels:  # the blank may be the padding, too: it ends a label
        blank = config.loss.index(len(class_labels))
        class_labels = tuple(name for name in class_labels if name != class_labels[blank])
    if config.padding in class_labels or (isinstance(config.padding, str) and facts.task == "regression"):
        raise LossError(
            "{key} must not be a class of the model, and a number for a regression.",
            key="padding",
            got=f"{config.padding!r}" + (f", one of {len(class_labels)} classes" if class_labels else ""),
            fix="Mark elements to ignore with another label, such as -100, or set the labels of the classes with "
            f"{{@{facts.settings}.classes}}.",
        )
    tasks = getattr(config.loss, "tasks", (facts.task,))  # a user's own loss need not declare them
    if facts.task in tasks:
        if not head and getattr(config.loss, "link", None) == "log" and any("scaled" in r for r in facts.lineage):
            raise LossError(
                "With link=log the prediction must be the logarithm of the mean.",
                got=f"{_name(config)} for a prediction that is scaled to the labels' mean and deviation",
                fix="Set {@convert.source.scale_target}=false.",
            )
        bound = getattr(config.loss, "labels", None)
        if bound is not None and data is not None and facts.task in ("regression", "multilabel"):
            check_labels(bound, _name(config), data, config.padding)
        return {"padding": config.padding, "blank": blank}
    suitable = [name for name, loss in LOSSES.items() if facts.task in loss.tasks]
    key = f"{{@add_loss.heads.{head}.loss.name}}" if head else "add_loss"
    meanings, several = " or ".join(f"{{@{facts.settings}.task}}={task}" for task in tasks), len(facts.outputs) > 1
    another = f", or another of its outputs {', '.join(facts.outputs)} as {{@convert.source.prediction}}"
    raise LossError(
        "The loss must fit the model's task.",
        got=f"{type(config.loss).__name__} for a {facts.task} {f'head {head!r}' if head else 'model'}",
        fix=f"Choose {key}={' or '.join(suitable)}; or, if an .onnx model's prediction"
        f"{f' {facts.prediction!r}' if several else ''} has another meaning, set {meanings}"
        + (f"{another}." if several and not head else "."),
    )


def _key(head: str, config: AddLossConfig) -> tuple[str, ...]:
    """Return the path of the settings of a head's loss."""
    return ("heads", head) if head in config.heads else ()


def resolved(facts: Facts, config: AddLossConfig) -> AddLossConfig:
    """Return the settings with `auto` replaced by the losses for the model and its heads."""
    configs = {head: config.of(head) for head in facts.predictions}
    if not any(isinstance(head_config.loss, Auto) for head_config in configs.values()):
        return config
    resolved_configs = {
        head: dataclasses.replace(configs[head], loss=configs[head].loss.of(head_facts))  # type: ignore[attr-defined]
        for head, head_facts in facts.predictions.items()
        if isinstance(configs[head].loss, Auto)
    }
    heads = {head: resolved_configs.get(head, configs[head]) for head in facts.heads}
    return dataclasses.replace(config, loss=resolved_configs.get("", config).loss, heads=heads)


def _in_words(loss: Any) -> str:
    settings = ", ".join(f"{key}={value}" for key, value in vars(loss).items())
    return LOSSES.name_of(type(loss)) + (f" ({settings})" if settings else "")


def _name(config: HeadLoss) -> str:
    return LOSSES.name_of(type(config.loss))


def _layout(facts: Facts, prediction: ir.Value) -> tuple[int, int | None]:
    """Return the prediction's rank and class axis: `facts.class_axis`, by default the last one."""
    rank = prediction.shape.rank() if prediction.shape is not None else 0
    if not rank:
        raise LossError(
            "A loss needs a prediction of known rank, one entry per row.",
            got=f"{prediction.name!r} of shape {prediction.shape}",
            fix="Choose another output with {@convert.source.prediction}.",
        )
    return rank, max(1, rank - 1) if facts.class_axis is None and rank != 2 else facts.class_axis


def classes_last(op: Builder, value: ir.Value, rank: int, axis: int | None) -> ir.Value:
    """Return a prediction, or its logits, as [N, E…, K] (see `Facts.class_axis`)."""
    if axis is None or axis == rank - 1:
        return value
    order = [*(i for i in range(rank) if i != axis), *([axis] if axis < rank else [])]
    moved = op.Transpose(value, perm=order) if axis < rank else op.Unsqueeze(value, [-1])
    if value.shape is not None:
        moved.shape = ir.Shape([*(value.shape[i] for i in order), *([1] if axis == rank else [])])
    return moved


def _sizes(prediction: ir.Value) -> list[Any]:
    """Return the prediction's sizes N, E…, K, each a number, a name or None; an unnamed N is named so."""
    assert prediction.shape is not None
    sizes = [d if isinstance(d, int) else d.value for d in prediction.shape]
    rows, *inner = [None if str(d).startswith("unk__") else d for d in sizes]  # a name from shape inference
    return ["N" if rows is None else rows, *inner]


def _label_sizes(elements: list[Any], facts: Facts) -> list[Any]:
    """Return the sizes of a row's label sequence, [L]; raise LossError if the rows are no sequences."""
    if len(elements) != 1:
        raise LossError(
            "CTC needs the steps of a sequence, a prediction [N, T, K].",
            got=f"{facts.prediction!r}, whose rows have {len(elements)} axes besides that of the classes",
            fix="Choose add_loss=cross_entropy, another output with {@convert.source.prediction}, or set the axis of "
            f"the classes with {{@{facts.settings}.class_axis}}.",
        )
    return [None]


def _as_elements(op: Builder, label: ir.Value, prediction: ir.Value) -> ir.Value:
    """Return labels reshaped to the prediction's elements, so that dynamic sizes are not broadcast."""
    assert label.shape is not None
    if all(isinstance(size, int) for size in list(label.shape)[1:-1]):
        return label
    last = label.shape[-1]
    sizes = op.Concat(op.Shape(prediction, end=-1), op.const(np.array([last if isinstance(last, int) else -1])), axis=0)
    aligned = op.Reshape(label, sizes)
    aligned.shape = label.shape
    return aligned


def _unpadded(op: Builder, label: ir.Value, padding: Any) -> tuple[ir.Value, ir.Value]:
    """Return labels with 0 for padding, and a mask of the elements without padding, [N, E…, 1]."""
    missing = op.Equal(label, op.like(padding, label))
    if label.shape is None or label.shape[-1] != 1:
        missing = op.Greater(op.ReduceSum(op.Cast(missing, to=ir.DataType.FLOAT), [-1], keepdims=1), 0)
    counts = op.Not(missing)
    cleaned = op.Where(counts, label, op.like(0, label))
    cleaned.shape = label.shape
    return cleaned, counts


def _per_row(op: Builder, terms: ir.Value, counts: ir.Value | None, elements: int, config: HeadLoss) -> ir.Value:
    """Return the terms of rows [N, K] from those of their elements [N, E…, K], without padded elements."""
    axes = [*range(1, 1 + elements)]
    if counts is not None:  # not a product: a padded element's term may be infinite
        terms = op.Where(counts, terms, op.like(0, terms))
    if not elements:
        return terms
    if config.elements == "mean" and counts is None:
        return op.ReduceMean(terms, axes, keepdims=0)
    total = op.ReduceSum(terms, axes, keepdims=0)
    if config.elements == "sum":
        return total
    return op.Div(total, op.Max(op.ReduceSum(op.cast(counts, terms), axes, keepdims=0), op.like(1, terms)))


def _dtype(value: ir.Value) -> ir.DataType:
    assert value.dtype is not None
    return value.dtype
