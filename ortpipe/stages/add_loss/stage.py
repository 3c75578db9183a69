"""add_loss: a forward model → a loss model."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Artifact, Facts
from ortpipe.errors import LossError
from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.graph.check import finish
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES, Scores

VERSION = 1


def add_loss(artifact: Artifact, config: AddLossConfig) -> Artifact:
    """Return the model with a label input, an optional weight input and a scalar loss output in front.

    loss = Σᵢ wᵢ·lᵢ, divided by N where the reduction is `mean`. Labels are numbers [N, K] for a regression, class
    indices [N, 1] (int64) for a classifier. New names collide with nothing; the forward outputs stay.

    Raises:
        LossError: the loss is not one for the model's task, or the width of the prediction is not known.

    >>> from sklearn.linear_model import LinearRegression
    >>> from ortpipe.stages.convert.stage import convert
    >>> from ortpipe.stages.add_loss.losses import L2
    >>> model = add_loss(convert(LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0])), AddLossConfig(L2()))
    >>> [output.name for output in model.model.graph.output]
    ['loss', 'prediction']
    """
    facts = artifact.facts
    check(facts, config)
    model = ir.from_proto(artifact.model)
    graph = model.graph
    prediction = query.value(graph, facts.prediction)
    scores = Scores(
        prediction,
        query.value(graph, facts.logits) if facts.logits is not None else None,
        len(facts.classes) if facts.classes is not None else None,
    )
    width = prediction.shape[-1] if prediction.shape is not None and prediction.shape.rank() == 2 else None
    if not isinstance(width, int):
        raise LossError(
            "A loss reads a prediction of shape [N, K] with a known K.",
            got=f"{facts.prediction!r} of shape {prediction.shape}",
            fix="Choose another output with convert.source.prediction, or export the model with that dimension fixed.",
        )
    op = Builder(graph, "loss")
    if facts.classes is not None and facts.task != "multilabel":
        label = op.input("label", ir.DataType.INT64, ["N", 1])
    else:
        label = op.input("label", _dtype(prediction), ["N", width])
    terms = config.loss(op, label, scores)
    weight = None
    if config.sample_weight:
        weight = op.input("sample_weight", _dtype(prediction), ["N", 1])
        terms = op.Mul(terms, weight)
    loss = op.ReduceSum(terms, keepdims=0)
    if config.reduction == "mean":
        rows = op.cast(op.Gather(op.Shape(label), op.const(np.int64(0))), prediction)
        loss = op.Div(loss, rows)
    loss.type, loss.shape = ir.TensorType(_dtype(prediction)), ir.Shape([])
    op.rename(loss, "loss")
    graph.outputs.insert(0, loss)
    return artifact.next(
        "add_loss",
        VERSION,
        model=finish(model),
        loss=loss.name,
        label=label.name,
        sample_weight=weight.name if weight is not None else None,
        reduction=config.reduction,
    )


def check(facts: Facts, config: AddLossConfig) -> None:
    """Refuse a loss that is not one for the model's task."""
    if facts.task in config.loss.tasks:
        return
    fitting = [name for name, loss in LOSSES.items() if facts.task in loss.tasks]
    raise LossError(
        "The loss must be one for the model's task.",
        got=f"{type(config.loss).__name__} for a {facts.task} model",
        fix=f"Choose add_loss={' or '.join(fitting)}.",
    )


def _dtype(value: ir.Value) -> ir.DataType:
    assert value.dtype is not None
    return value.dtype
