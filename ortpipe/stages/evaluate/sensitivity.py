"""Sensitivity: how far the score moves, to first order, as a column goes from its mean to a row's value."""

from collections.abc import Iterator

import numpy as np
import onnx

from ortpipe.artifact import Facts
from ortpipe.autodiff.gradient import gradient_apart
from ortpipe.data.feeds import feed_inputs
from ortpipe.data.rows import Rows
from ortpipe.graph.core import query
from ortpipe.graph.core.apart import Weights
from ortpipe.graph.core.check import parsed
from ortpipe.metrics.predictions import predicted
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.stages.evaluate.importance import places_of

PIECE = 100  # rows per gradient call


def sensitivity(
    model: onnx.ModelProto, weights: Weights, facts: Facts, rows: Rows, runtime: RuntimeConfig | None
) -> tuple[dict[str, float], dict[str, np.ndarray], list[str]]:
    """Return the sensitivity of each column and of each entry of larger inputs, and the columns without one.

    Larger inputs have more than two dimensions. Strings, and columns on which the score does not depend, have none.

    It is the mean over rows of |Σᵢ (xᵢ − x̄ᵢ) · ∂s/∂xᵢ|, where i runs over the column's entries (of a word column, its
    features), x̄ is the mean row and s the score of the predicted class (its logit, if the model has one); of several
    outputs it is the sum of theirs. For a linear model it is the mean |SHAP value| (Lundberg and Lee, 2017); in general
    "gradient × input" (Ancona et al., 2018) from the mean row.

    Raises:
        DeriveError: an operator between an input and the score has no gradient.
    """
    graph = parsed(model).graph
    by_name = query.values(graph)
    score = facts.prediction if facts.logits is None or facts.members is not None else facts.logits
    needed = query.ancestors([by_name[score]])
    names = [n for n in facts.inputs if by_name[n].dtype in query.FLOATS and by_name[n] in needed]
    if not names:
        return {}, {}, list(places_of(rows))
    forward = Session(model, runtime, weights=weights)
    gradient_model, gradient_weights = gradient_apart(
        model, weights, score, names, kind="vjp", ones=False, value=False, shape={}, function=None
    )
    backward = Session(gradient_model, runtime, weights=gradient_weights)
    [cotangent] = [value for value in gradient_model.graph.input if value.name not in facts.inputs]
    width = [dim.dim_value for dim in cotangent.type.tensor_type.shape.dim]
    fed = feed_inputs(model, facts, rows)
    input_names = dict(zip(rows.inputs, fed, strict=True)) if len(rows.inputs) == len(fed) == 1 else {n: n for n in fed}
    means = {name: np.nanmean(fed[name], axis=0, dtype=np.float64) for name in names}
    entries = {name: np.zeros(fed[name].shape[1:]) for name in names}
    columns = {
        column: float_places
        for column, places in places_of(rows).items()
        if (float_places := [(input_names[name], i) for name, i in places if input_names.get(name) in names])
        and all(fed[name].ndim == (1 if i is None else 2) for name, i in float_places)
    }
    totals = dict.fromkeys(columns, 0.0)
    count = len(rows.label)
    for first in range(0, count, PIECE):
        piece = {name: array[first : first + PIECE] for name, array in fed.items()}
        [prediction] = forward.run(piece, [facts.prediction])
        for direction in _cotangents(facts, prediction, width):
            gradients = backward.run({**piece, cotangent.name: direction}, [f"{name}_grad" for name in names])
            moved = {}
            for name, gradient in zip(names, gradients, strict=True):
                offset = piece[name].astype(np.float64) - means[name]
                moved[name] = np.where(np.isnan(offset), 0, offset * gradient)  # a missing value counts as the mean
                entries[name] += abs(moved[name]).sum(axis=0)
            for column, places in columns.items():
                moves = [moved[name] if i is None else moved[name][:, i] for name, i in places]
                totals[column] += float(abs(np.sum(moves, axis=0)).sum())
    maps = {name: array / count for name, array in entries.items() if array.ndim > 1}
    without = [
        column for column, places in places_of(rows).items() if not {input_names.get(n) for n, _ in places} & {*names}
    ]
    return {column: total / count for column, total in totals.items()}, maps, without


def _cotangents(facts: Facts, prediction: np.ndarray, width: list[int]) -> Iterator[np.ndarray]:
    """Yield the cotangents: one that selects the predicted class of each row and element, or one for each output."""
    label, probability = predicted(facts, prediction)
    axis = -1 if facts.class_axis is None else facts.class_axis
    if probability is not None and facts.task != "multilabel":
        columns = 1 if axis == len(width) else width[axis]  # a score of two classes may be one number
        one_hot = np.eye(columns)[label if columns > 1 else np.zeros_like(label)]
        selections = [one_hot]
    else:
        selections = [np.broadcast_to(row, label.shape) for row in np.eye(label.shape[-1])]
    for selection in selections:
        placed = selection[..., 0] if axis == len(width) else np.moveaxis(selection, -1, axis)
        yield placed.astype(prediction.dtype)
