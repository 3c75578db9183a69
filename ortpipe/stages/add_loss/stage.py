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
from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.graph.check import infer
from ortpipe.graph.garbage import gc_paused
from ortpipe.settings import typed
from ortpipe.stages.add_loss.config import AddLossConfig, HeadLoss
from ortpipe.stages.add_loss.domains import check_labels
from ortpipe.stages.add_loss.losses import LOSSES, Scores
from ortpipe.stages.add_loss.losses.auto import Auto
from ortpipe.stages.add_loss.losses.ctc import CTC

VERSION = 4
LOG = "the prediction is the logarithm of the mean (link=log): the trained model gives log μ, metrics are of μ"


@typed
@gc_paused()
def add_loss(artifact: Artifact, config: AddLossConfig, *, data: Data | None = None) -> Artifact:
    """Return the model with a label input, an optional weight input and a scalar loss output in front.

    loss = Σᵢ wᵢ·lᵢ, divided by N where the reduction is `mean`. The row's own loss lᵢ is Σₖ tᵢₖ of the loss's terms t;
    of elements e (steps, pixels) it is Σₑ cᵢₑ Σₖ tᵢₑₖ, divided by max(1, Σₑ cᵢₑ) where `elements` is `mean`: cᵢₑ is 0
    where the label is `padding`, else 1. (With both `sum`, cross-entropy is torch.nn.functional.cross_entropy of
    reduction="sum" and ignore_index=padding; that of "mean" divides by Σᵢₑ cᵢₑ, not by N.) Labels are numbers
    [N, E…, K] for a regression, class indices [N, E…, 1] (int64) for a classifier, −1 for padding, whatever axis of the
    prediction holds its K columns; E… are the elements, none of a prediction [N, K]. New names collide with nothing;
    the forward outputs stay.

    Heads, further outputs h with a label of their own, `label_<output>`, add to it: loss = Σₕ λₕ·lossₕ, each of them
    the sum or mean above, with its own loss, elements and padding, and λ its `weight`. Rows' weights wᵢ are of all.

    Raises:
        LossError: the loss is not one for the model's task, or for labels of `data`, where they are given, or the rank
            of the prediction is not known.

    >>> from sklearn.linear_model import LinearRegression
    >>> from ortpipe.stages.convert.stage import convert
    >>> from ortpipe.stages.add_loss.losses.l2 import L2
    >>> model = add_loss(convert(LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0])), AddLossConfig(L2()))
    >>> [output.name for output in model.model.graph.output]
    ['loss', 'prediction']
    """
    facts, chosen = artifact.facts, config
    check(facts, config, data=data)
    config = decided(facts, config)
    model = artifact.ir_model()
    graph, parts, notes = model.graph, dict[str, _Part](), list[str]()
    if isinstance(chosen.loss, Auto):
        by = "" if "loss" in facts.objective else f", by the task ({facts.task}): the model names no loss of its own"
        notes.append(f"add_loss=auto is {_in_words(config.loss)}{by}")
    op = Builder(graph, "loss")
    weight: ir.Value | None = None
    for head, own_facts in facts.predictions.items():
        with under(*_key(head, config)):
            parts[head] = part = _part(op, own_facts, config, head, weight)
        weight = part.weight
        if part.facts["link"] == "log":
            notes.append(f"{LOG}{f', of head {head!r}' if head else ''}")
    loss = _weighted_sum(op, [(parts[head].loss, config.of(head).weight) for head in parts])
    op.rename(loss, config.loss_name)
    graph.outputs.insert(0, loss)
    if facts.heads:
        losses = [
            f"{config.of(head).weight:g} · {_name(config.of(head))} of {own_facts.prediction!r}"
            for head, own_facts in facts.predictions.items()
        ]
        notes.append(f"loss = {' + '.join(losses)}")
    heads = {name: dataclasses.replace(head, **parts[name].facts) for name, head in facts.heads.items()}
    losses_of = [type(config.of(head).loss) for head in parts]
    with contextlib.ExitStack() as stack:  # what is wrong in their nodes shows in the whole graph
        for one in dict.fromkeys(losses_of):
            stack.enter_context(own.blamed(one, "loss", LossError))
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
    """What one prediction adds to a loss model."""

    loss: ir.Value  # a scalar
    weight: ir.Value | None  # the input of rows' weights
    facts: dict[str, Any]  # of the prediction, or of the head


def _part(op: Builder, facts: Facts, whole: AddLossConfig, head: str, weight: ir.Value | None) -> _Part:
    """Write the loss of one prediction, which `facts` are of, behind its label input."""
    graph, config = op.graph, whole.of(head)
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
        elements = _label_of_steps(elements, facts)
    name = f"{whole.label_name}_{head}" if head else whole.label_name
    if facts.classes is not None and facts.task != "multilabel":
        label = op.input(name, ir.DataType.INT64, [rows, *elements, 1])
    else:
        label = op.input(name, _dtype(prediction), [rows, *elements, columns])
    fitted, counts = label, None
    if sequences is not None:
        fitted = sequences.ended(op, label, scores)
    else:
        fitted = _as_elements(op, label, prediction)
        if config.padding is not None:
            fitted, counts = _unpadded(op, fitted, config.padding if fitted.dtype == prediction.dtype else -1)
    terms = (
        _terms(op, fitted, scores, config) if facts.members is None else _of_members(op, fitted, scores, facts, config)
    )
    if sequences is not None and config.elements == "mean":  # a row's elements are its labels
        terms = op.Div(terms, op.Max(op.cast(sequences.lengths(op, fitted), terms), op.like(1, terms)))
    terms_per_row: Any = 1 if facts.task == "binary" else terms.shape[-1] if terms.shape is not None else None
    if whole.reduction == "mean" and not isinstance(terms_per_row, int):
        terms, terms_per_row = op.ReduceSum(terms, [-1], keepdims=1), 1
    terms = _joined(op, terms, counts, 0 if sequences is not None else len(elements), config)  # [N, K]
    if whole.sample_weight:
        weight = weight if weight is not None else op.input(whole.weight_name, _dtype(prediction), [rows, 1])
        terms = op.Mul(terms, weight if weight.dtype == _dtype(prediction) else op.cast(weight, prediction))
    if whole.reduction == "sum":
        loss = op.ReduceSum(terms, keepdims=0)
    else:  # the mean over N rows of the sum over K terms: K times the mean of all
        loss = op.ReduceMean(terms, keepdims=0)
        loss = op.Mul(loss, op.like(terms_per_row, prediction)) if terms_per_row != 1 else loss
    loss.type, loss.shape = ir.TensorType(_dtype(prediction)), ir.Shape([])
    link = "log" if getattr(config.loss, "link", None) == "log" else None
    blank = None if sequences is None else sequences.blank % columns
    told = {"label": label.name, "class_axis": axis, "padding": config.padding, "blank": blank, "link": link}
    return _Part(loss, weight, told)


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


def _of_members(op: Builder, label: ir.Value, scores: Scores, facts: Facts, config: HeadLoss) -> ir.Value:
    """Return the mean [N, K] of what the loss writes for each member's own scores [N, members, K] of one label."""
    members = query.value(op.graph, str(facts.members))
    own_scores = scores._replace(prediction=members, logits=None if facts.task == "regression" else members)
    each = op.Unsqueeze(label, [1])
    assert label.shape is not None
    each.shape = ir.Shape([label.shape[0], 1, label.shape[1]])
    terms = _terms(op, each, own_scores, config)
    mean = op.ReduceMean(terms, [1], keepdims=0)
    mean.shape = ir.Shape([label.shape[0], terms.shape[-1] if terms.shape is not None else None])
    return mean


def _terms(op: Builder, label: ir.Value, scores: Scores, config: HeadLoss) -> ir.Value:
    """Return what the loss writes, of which the user's own may be anything."""
    loss = type(config.loss)
    with op.formulas(), own.blamed(loss, "loss", LossError):
        terms: Any = config.loss(op, label, scores)
    if not isinstance(terms, ir.Value) or terms.dtype not in (None, scores.prediction.dtype):
        raise LossError(
            "A loss returns its terms, a value of the graph of the prediction's type.",
            got=f"{own.path_of(loss)} returned {terms!r:.200}",
            fix="Write it with `op`, or with + − * / of label and scores.prediction; op.cast(x, like) changes a type.",
        )
    if not own.is_own(loss):
        return terms
    with own.blamed(loss, "loss", LossError):
        infer(ir.Model(op.graph, ir_version=10))
    if not isinstance(config.loss, CTC) and not _has_rows(terms, scores.prediction):
        raise LossError(
            "A loss returns terms for each row, with as many axes as the prediction, rows first.",
            got=f"{own.path_of(loss)} returned {terms.shape} of a prediction {scores.prediction.shape}",
            fix="Sum or average no rows (their mean, with weights, is taken behind it); reduce with keepdims=1.",
        )
    return terms


def _has_rows(terms: ir.Value, prediction: ir.Value) -> bool:
    """Return whether terms may be [N, …, K] of a prediction [N, …, C]; not [N, N], where a label lost an axis."""
    if terms.shape is None or prediction.shape is None:
        return True
    if len(terms.shape) != len(prediction.shape) or isinstance(terms.shape[0], int) != isinstance(
        prediction.shape[0], int
    ):
        return False
    rows, last = prediction.shape[0], terms.shape[-1]
    return isinstance(last, int) or last != rows or prediction.shape[-1] == rows


def check(facts: Facts, config: AddLossConfig, *, data: Data | None = None) -> Facts:
    """Reject a loss that is not one for its task or for the labels, and padding that is a class.

    Return the facts with how labels are read, which later stages check theirs by.
    """
    config = decided(facts, config)
    first = None if data is None else data.train.head(1)
    given = {"add_loss.heads": config.heads, "data.source.heads": {} if first is None else first.heads}
    for key, names in given.items():
        if unknown := [name for name in names if name not in facts.heads]:
            near = f"{nearest(unknown[0], facts.heads)} Or name" if facts.heads else "Name"
            rule = f"{key} names further outputs of the model, which convert.source.heads names too."
            fix = f"{near} the output there: +convert.source.heads.{unknown[0]}={{}}."
            raise LossError(rule, key="heads" if names is config.heads else None, got=repr(unknown[0]), fix=fix)
    if first is not None:
        for name in facts.heads:
            first.of(name)  # which refuses rows without that label
    told = {}
    for head, own_facts in facts.predictions.items():
        with under(*_key(head, config)):
            told[head] = _checked(own_facts, config.of(head), None if data is None else data.of(head), head)
    heads = {name: dataclasses.replace(head, **told[name]) for name, head in facts.heads.items()}
    return dataclasses.replace(facts, **told[""], heads=heads)


def _checked(facts: Facts, config: HeadLoss, data: Data | None, head: str) -> dict[str, Any]:
    """Check the loss of one prediction; return how its labels are read."""
    named, blank = facts.classes or (), None
    if isinstance(config.loss, CTC) and named:  # the blank itself may mark padding: it ends a label too
        blank = config.loss.index(len(named))
        named = tuple(name for name in named if name != named[blank])
    if config.padding is not None and config.padding in named:
        raise LossError(
            "{key} must be no class of the model.",
            key="padding",
            got=f"{config.padding!r}, one of {len(named)} classes",
            fix="Mark what counts nothing with another label, such as -100, or say which labels the classes have: "
            f"{facts.settings}.classes.",
        )
    tasks = getattr(config.loss, "tasks", (facts.task,))  # of the user's own, any
    if facts.task in tasks:
        if not head and getattr(config.loss, "link", None) == "log" and any("scaled" in one for one in facts.lineage):
            raise LossError(
                "With link=log the prediction is the logarithm of the mean.",
                got=f"{_name(config)} for a prediction that is scaled to the labels' own mean and deviation",
                fix="Set convert.source.scale_target=false.",
            )
        bound = getattr(config.loss, "labels", None)
        if bound is not None and data is not None and facts.task in ("regression", "multilabel"):
            check_labels(bound, _name(config), data, config.padding)
        return {"padding": config.padding, "blank": blank}
    fitting = [name for name, loss in LOSSES.items() if facts.task in loss.tasks]
    key = f"add_loss.heads.{head}.loss.name" if head else "add_loss"
    other, many = " or ".join(f"{facts.settings}.task={task}" for task in tasks), len(facts.outputs) > 1 and not head
    raise LossError(
        "The loss must be one for the model's task.",
        got=f"{type(config.loss).__name__} for a {facts.task} {f'head {head!r}' if head else 'model'}",
        fix=f"Choose {key}={' or '.join(fitting)}; where an .onnx model means something else by its prediction"
        f"{f' {facts.prediction!r}' if many else ''}, set {other}"
        + (f", or another of its outputs {', '.join(facts.outputs)} as convert.source.prediction." if many else "."),
    )


def _key(head: str, config: AddLossConfig) -> tuple[str, ...]:
    """Return where the settings of a head's loss are."""
    return ("heads", head) if head in config.heads else ()


def decided(facts: Facts, config: AddLossConfig) -> AddLossConfig:
    """Return the settings with the losses that `auto` is for a model, and for its heads."""
    of = {head: config.of(head) for head in facts.predictions}
    if not any(isinstance(one.loss, Auto) for one in of.values()):
        return config
    told = {
        head: dataclasses.replace(of[head], loss=of[head].loss.of(own_facts))  # type: ignore[attr-defined]
        for head, own_facts in facts.predictions.items()
        if isinstance(of[head].loss, Auto)
    }
    heads = {head: told.get(head, of[head]) for head in facts.heads}
    return dataclasses.replace(config, loss=told.get("", config).loss, heads=heads)


def _in_words(loss: Any) -> str:
    settings = ", ".join(f"{key}={value}" for key, value in vars(loss).items())
    return LOSSES.name_of(type(loss)) + (f" ({settings})" if settings else "")


def _name(config: HeadLoss) -> str:
    return LOSSES.name_of(type(config.loss))


def _layout(facts: Facts, prediction: ir.Value) -> tuple[int, int | None]:
    """Return the prediction's rank, and `facts.class_axis`, which only [N, K] leaves to be the last."""
    rank = prediction.shape.rank() if prediction.shape is not None else 0
    if not rank:
        raise LossError(
            "A loss reads a prediction of known rank, one entry per row.",
            got=f"{prediction.name!r} of shape {prediction.shape}",
            fix="Choose another output with convert.source.prediction.",
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
    """Return the prediction's own N, E…, and K, each a number, a name or None; a nameless N is called so."""
    assert prediction.shape is not None
    sizes = [d if isinstance(d, int) else d.value for d in prediction.shape]
    rows, *rest = [None if str(d).startswith("unk__") else d for d in sizes]  # a name that shape inference made up
    return ["N" if rows is None else rows, *rest]


def _label_of_steps(elements: list[Any], facts: Facts) -> list[Any]:
    """Return the sizes of a row's label that all its steps read together: [L]."""
    if len(elements) != 1:
        raise LossError(
            "CTC reads the steps of a sequence, a prediction [N, T, K].",
            got=f"{facts.prediction!r}, whose rows have {len(elements)} axes besides that of the classes",
            fix="Choose add_loss=cross_entropy, another output with convert.source.prediction, or say which axis holds "
            f"the classes: {facts.settings}.class_axis.",
        )
    return [None]


def _as_elements(op: Builder, label: ir.Value, prediction: ir.Value) -> ir.Value:
    """Return labels that cannot be broadcast to the prediction's elements where only the run knows how many it has."""
    assert label.shape is not None
    if all(isinstance(size, int) for size in list(label.shape)[1:-1]):
        return label
    last = label.shape[-1]
    sizes = op.Concat(op.Shape(prediction, end=-1), op.const(np.array([last if isinstance(last, int) else -1])), axis=0)
    fitted = op.Reshape(label, sizes)
    fitted.shape = label.shape
    return fitted


def _unpadded(op: Builder, label: ir.Value, padding: Any) -> tuple[ir.Value, ir.Value]:
    """Return labels that are 0 where an element counts nothing, and which elements count, [N, E…, 1]."""
    missing = op.Equal(label, op.like(padding, label))
    if label.shape is None or label.shape[-1] != 1:
        missing = op.Greater(op.ReduceSum(op.Cast(missing, to=ir.DataType.FLOAT), [-1], keepdims=1), 0)
    counts = op.Not(missing)
    kept = op.Where(counts, label, op.like(0, label))
    kept.shape = label.shape
    return kept, counts


def _joined(op: Builder, terms: ir.Value, counts: ir.Value | None, elements: int, config: HeadLoss) -> ir.Value:
    """Return the terms of rows [N, K] from those of their elements [N, E…, K], of which some may count nothing."""
    axes = [*range(1, 1 + elements)]
    if counts is not None:  # not a product: a term may be infinite where it does not count
        terms = op.Where(counts, terms, op.like(0, terms))
    if not elements:
        return terms
    if config.elements == "mean" and counts is None:
        old = op.graph.opset_imports[""] < 18  # there the axes are an attribute
        return op.ReduceMean(terms, axes=axes, keepdims=0) if old else op.ReduceMean(terms, axes, keepdims=0)
    total = op.ReduceSum(terms, axes, keepdims=0)
    if config.elements == "sum":
        return total
    return op.Div(total, op.Max(op.ReduceSum(op.cast(counts, terms), axes, keepdims=0), op.like(1, terms)))


def _dtype(value: ir.Value) -> ir.DataType:
    assert value.dtype is not None
    return value.dtype
