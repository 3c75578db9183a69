"""add_loss: a forward model → a loss model.

loss = Σᵢ wᵢ·lᵢ over rows i, divided by N if the reduction is `mean`; lᵢ is Σₖ tᵢₖ over the loss's terms t. Labels are
numbers [N, K] for a regression, class indices [N, 1] (int64) for a classifier.
"""

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx_ir as ir

from ortpipe import own
from ortpipe.artifact import Artifact, Facts
from ortpipe.data.rows import Data
from ortpipe.doors import later
from ortpipe.errors import LossError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, gc_paused
from ortpipe.settings import typed
from ortpipe.stages.add_loss.config import VERSION, AddLossConfig, HeadLoss
from ortpipe.stages.add_loss.losses import Scores

if TYPE_CHECKING:  # for models and settings beyond the loss of rows [N, K]
    from ortpipe.stages.add_loss.early import checked_losses
    from ortpipe.stages.add_loss.elements import add_heads, terms_of_more
    from ortpipe.stages.add_loss.forms import write_form
    from ortpipe.stages.add_loss.own_terms import check_terms
else:
    later(__name__)

TRAITS = ("depends_on_model", "labels", "link", "of_sequences")  # of losses beyond a formula for labels [N, K]


@typed
@gc_paused()
def add_loss(artifact: Artifact, config: AddLossConfig, *, data: Data | None = None) -> Artifact:
    """Return the model with a label input, an optional weight input, and a scalar loss as its first output.

    New names are unique in the graph; the forward outputs stay. Only the checks read `data`.

    Raises:
        LossError: the loss does not fit the model's task or the labels of `data`, or the prediction's rank is unknown.

    >>> from sklearn.linear_model import LinearRegression
    >>> from ortpipe.stages.convert.stage import convert
    >>> from ortpipe.stages.add_loss.losses.l2 import L2
    >>> model = add_loss(convert(LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0])), AddLossConfig(L2()))
    >>> [output.name for output in model.model.graph.output]
    ['loss', 'prediction']
    """
    facts, model = artifact.facts, artifact.ir_model()
    notes: list[str] = []
    if _needs_checks(facts, config, data):
        config, notes = checked_losses(facts, config, data)
    op = Builder(model.graph, "loss")
    part = write_loss(op, facts, config)
    part = add_heads(op, facts, config, part) if facts.heads or config.weight != 1 else part
    op.rename(part.loss, config.loss_name)
    model.graph.outputs.insert(0, part.loss)
    with contextlib.ExitStack() as stack:  # errors in nodes of own losses appear in the check of the whole graph
        for kind in {type(config.of(head).loss): None for head in ("", *facts.heads)}:
            stack.enter_context(own.blamed(kind, "loss", LossError))
        return artifact.next(
            "add_loss",
            VERSION,
            model=model,
            loss=part.loss.name,
            sample_weight=None if part.weight is None else part.weight.name,
            reduction=config.reduction,
            **part.facts,
            notes=[*notes, *part.notes],
        )


def _needs_checks(facts: Facts, config: AddLossConfig, data: Data | None) -> bool:
    """Return whether a loss follows from the model, or must be checked against it, the labels or other settings."""
    of_data = data is not None and (data.class_weight or data.train.head(1).heads)
    unfit = facts.task not in getattr(config.loss, "tasks", (facts.task,))  # a user's own loss need not declare them
    special = unfit or any(getattr(config.loss, trait, None) for trait in TRAITS) or config.padding is not None
    return bool(special or of_data or facts.heads or facts.class_weight or config.heads)


class LossPart(NamedTuple):
    """The loss of a prediction, or of several."""

    loss: ir.Value  # a scalar
    weight: ir.Value | None  # the input of row weights
    facts: dict[str, Any]  # about the label
    notes: list[str]


def write_loss(
    op: Builder, facts: Facts, config: AddLossConfig, head: str = "", weight: ir.Value | None = None
) -> LossPart:
    """Write a label input and the loss of one prediction: the terms of its rows, weighted and reduced."""
    of_head = config.of(head)
    about = {"class_axis": facts.class_axis, "blank": None, "link": None, "levels": ()}
    scores = _scores(op, facts)._replace(label_columns=getattr(of_head.loss, "label_columns", None))
    name = f"{config.label_name}_{head}" if head else config.label_name
    weighted = facts.members or facts.class_weight or "class_weight" in facts.objective
    if is_of_rows(facts, of_head, scores.prediction) and not weighted:
        label = label_input(op, facts, name, scores)
        terms, columns = with_columns(op, facts, config, terms_of(op, of_head, label, scores))
    else:
        scores, label, terms, columns, of_label = terms_of_more(op, facts, config, head, name, scores)
        about |= of_label
    dtype = scores.dtype
    if config.sample_weight:
        weight = weight if weight is not None else op.input(config.weight_name, dtype, [scores.sizes[0], 1])
        terms = op.Mul(terms, weight if weight.dtype == dtype else op.Cast(weight, to=dtype))
    loss = (op.ReduceSum if config.reduction == "sum" else op.ReduceMean)(terms, keepdims=0)
    if config.reduction == "mean" and columns != 1:  # over N rows, of the sum over K terms: K times the mean of all
        loss = op.Mul(loss, op.like(columns, scores.prediction))
    loss.type, loss.shape = ir.TensorType(dtype), ir.Shape([])
    form, notes = write_form(op, of_head, scores, head) if getattr(of_head.loss, "link", None) else ({}, [])
    return LossPart(loss, weight, {**about, **form, "label": label.name, "padding": of_head.padding}, notes)


def _scores(op: Builder, facts: Facts) -> Scores:
    """Return the values of the graph that a loss compares with the label."""
    return Scores(
        query.value(op.graph, facts.prediction),
        None if facts.logits is None else query.value(op.graph, facts.logits),
        None if facts.classes is None else len(facts.classes),
        bool(facts.opposite),
        tuple(query.value(op.graph, name) for name in facts.inputs),
    )


def is_of_rows(facts: Facts, config: HeadLoss, prediction: ir.Value) -> bool:
    """Return whether each row has a label or a vector of them, [N, K], of which none is left out."""
    matrix = prediction.shape is not None and prediction.shape.rank() == 2 and facts.class_axis in (None, 1)
    return matrix and config.padding is None and not getattr(config.loss, "of_sequences", False)


def label_input(op: Builder, facts: Facts, name: str, scores: Scores, elements: Any = None) -> ir.Value:
    """Add the label input: values [N, E…, K], class indices [N, E…, 1], or shares of soft classes [N, K]."""
    rows, *inner, columns = scores.sizes
    inner = inner if elements is None else [*elements]
    dtype, columns = scores.dtype, scores.label_columns or columns
    if facts.classes is not None and facts.task != "multilabel":
        dtype, columns = (dtype, scores.classes) if facts.soft else (ir.DataType.INT64, 1)
    return op.input(name, dtype, [rows, *inner, columns])


def with_columns(op: Builder, facts: Facts, config: AddLossConfig, terms: ir.Value) -> tuple[ir.Value, Any]:
    """Return terms and their number of columns, which a mean needs: terms of unknown width are summed first."""
    if facts.task == "binary":
        return terms, 1
    columns: Any = None if terms.shape is None else terms.shape[-1]
    if config.reduction == "mean" and not isinstance(columns, int):
        return op.ReduceSum(terms, [-1], keepdims=1), 1
    return terms, columns


def terms_of(op: Builder, config: HeadLoss, label: ir.Value, scores: Scores) -> ir.Value:
    """Return the terms that a loss writes; those of a user's own loss are checked."""
    loss = config.loss
    with op.formulas(), own.blamed(type(loss), "loss", LossError):
        terms: Any = loss(op, label, scores)
    if own.is_own(type(loss)) or terms.dtype not in (None, scores.prediction.dtype):
        check_terms(op, loss, scores, terms)
    return terms
