"""add_loss: a forward model → a loss model."""

from typing import Any

import onnx_ir as ir

from ortpipe.artifact import Artifact, Facts
from ortpipe.errors import LossError
from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.settings import typed
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES, Scores

VERSION = 4


@typed
def add_loss(artifact: Artifact, config: AddLossConfig) -> Artifact:
    """Return the model with a label input, an optional weight input and a scalar loss output in front.

    loss = Σᵢ wᵢ·lᵢ, divided by N where the reduction is `mean`. Labels are numbers [N, K] for a regression, class
    indices [N, 1] (int64) for a classifier. New names collide with nothing; the forward outputs stay.

    Raises:
        LossError: the loss is not one for the model's task, or the width K of the prediction, by which the mean of
            several columns is multiplied, is not known.

    >>> from sklearn.linear_model import LinearRegression
    >>> from ortpipe.stages.convert.stage import convert
    >>> from ortpipe.stages.add_loss.losses.l2 import L2
    >>> model = add_loss(convert(LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0])), AddLossConfig(L2()))
    >>> [output.name for output in model.model.graph.output]
    ['loss', 'prediction']
    """
    facts = artifact.facts
    check(facts, config)
    model = artifact.ir_model()
    graph = model.graph
    prediction = query.value(graph, facts.prediction)
    scores = Scores(
        prediction,
        query.value(graph, facts.logits) if facts.logits is not None else None,
        len(facts.classes) if facts.classes is not None else None,
        bool(facts.opposite),
    )
    rows, columns = _rows_and_columns(prediction, config)
    op = Builder(graph, "loss")
    if facts.classes is not None and facts.task != "multilabel":
        label = op.input(config.label_name, ir.DataType.INT64, [rows, 1])
    else:
        label = op.input(config.label_name, _dtype(prediction), [rows, columns])
    with op.formulas():
        terms = config.loss(op, label, scores)
    terms_per_row: Any = 1 if facts.task == "binary" else terms.shape[-1] if terms.shape is not None else None
    if config.reduction == "mean" and not isinstance(terms_per_row, int):
        terms, terms_per_row = op.ReduceSum(terms, [-1], keepdims=1), 1
    weight = None
    if config.sample_weight:
        weight = op.input(config.weight_name, _dtype(prediction), [rows, 1])
        terms = op.Mul(terms, weight)
    if config.reduction == "sum":
        loss = op.ReduceSum(terms, keepdims=0)
    else:  # the mean over N rows of the sum over K terms: K times the mean of all
        loss = op.ReduceMean(terms, keepdims=0)
        loss = op.Mul(loss, op.like(terms_per_row, prediction)) if terms_per_row != 1 else loss
    loss.type, loss.shape = ir.TensorType(_dtype(prediction)), ir.Shape([])
    op.rename(loss, config.loss_name)
    graph.outputs.insert(0, loss)
    return artifact.next(
        "add_loss",
        VERSION,
        model=model,
        loss=loss.name,
        label=label.name,
        sample_weight=weight.name if weight is not None else None,
        reduction=config.reduction,
    )


def check(facts: Facts, config: AddLossConfig) -> None:
    """Reject a loss that is not one for the model's task."""
    if facts.task in config.loss.tasks:
        return
    fitting = [name for name, loss in LOSSES.items() if facts.task in loss.tasks]
    other = " or ".join(f"convert.source.task={task}" for task in config.loss.tasks)
    raise LossError(
        "The loss must be one for the model's task.",
        got=f"{type(config.loss).__name__} for a {facts.task} model",
        fix=f"Choose add_loss={' or '.join(fitting)}; where an .onnx model means something else by its prediction, "
        f"set {other}.",
    )


def _rows_and_columns(prediction: ir.Value, config: AddLossConfig) -> tuple[int | str, Any]:
    """Return the prediction's own N and K, each a number or a name; a nameless N is called so."""
    shape = [d if isinstance(d, int) else d.value for d in prediction.shape] if prediction.shape is not None else []
    if len(shape) != 2 or (config.reduction == "mean" and not isinstance(shape[1], int)):
        raise LossError(
            "A loss reads a prediction of shape [N, K] with a known K.",
            got=f"{prediction.name!r} of shape {prediction.shape}",
            fix="Choose another output with convert.source.prediction, or export the model with "
            f"{'its single column kept, [N, 1]' if len(shape) == 1 else 'that dimension fixed'}.",
        )
    rows, columns = shape
    inferred = str(rows).startswith("unk__")  # a name that shape inference made up
    return "N" if inferred or rows is None else rows, columns


def _dtype(value: ir.Value) -> ir.DataType:
    assert value.dtype is not None
    return value.dtype
