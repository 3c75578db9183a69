"""Columns of the test rows: how much the trained model depends on each.

Importance: how much worse a metric is with the column shuffled (permutation importance, Breiman, 2001). Sensitivity:
how far the score moves, to first order, as the column goes from its mean to a row's value.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx

from ortpipe.artifact import Arrays, Facts
from ortpipe.autodiff import gradient_apart
from ortpipe.data.feeds import feed_inputs
from ortpipe.data.pieces import concatenate
from ortpipe.data.rows import Rows
from ortpipe.errors import DeriveError
from ortpipe.graph.core import query
from ortpipe.graph.core.inference import parsed
from ortpipe.graph.core.protos import Weights
from ortpipe.metrics import CLASSES, Metric
from ortpipe.metrics.predictions import Compared, compared, of_head, predicted, truth
from ortpipe.runtime.session import Session
from ortpipe.stages.evaluate.stage import Work

PIECE = 100  # rows per gradient call
MOST_ROWS = 10_000  # the largest number of rows to shuffle
Places = list[tuple[str, int | None]]  # (input, its column; None: the whole input)


def sensitivity_of_columns(work: Work) -> tuple[dict[str, float], dict[str, np.ndarray], list[str]]:
    """Return the sensitivity of each column, as tensors that of each entry of larger inputs, and notes.

    Larger inputs have more than two dimensions. Strings, and columns on which the score does not depend, have none.

    It is the mean over rows of |Σᵢ (xᵢ − x̄ᵢ) · ∂s/∂xᵢ|, where i runs over the column's entries (of a word column, its
    features), x̄ is the mean row and s the score of the predicted class (its logit, if the model has one); of several
    outputs it is the sum of theirs. For a linear model it is the mean |SHAP value| (Lundberg and Lee, 2017); in general
    "gradient × input" (Ancona et al., 2018) from the mean row.
    """
    rows = sample_of(work)
    places_by_column = places_of(rows)
    try:
        by_column, maps, names = _sensitivity(work, rows, places_by_column)
    except DeriveError as error:  # the trained result must not be lost
        return {}, {}, [f"no sensitivity: {error.rule} Got: {error.got}"]
    without = [column for column, places in places_by_column.items() if not {name for name, _ in places} & names]
    note = f"sensitivity needs numbers that the score depends on: none for {', '.join(without[:20])}"
    tensors = {f"evaluation/sensitivity/{name}": array for name, array in maps.items()}
    return by_column, tensors, [note] if without else []


def _sensitivity(
    work: Work, rows: Rows, places_by_column: Mapping[str, Places]
) -> tuple[dict[str, float], dict[str, np.ndarray], set[str]]:
    """Return the sensitivity of columns, of entries by the model's inputs, and the rows' inputs that have any."""
    facts, (model, weights) = work.artifact.facts, work.proto("trained")
    by_name = query.values(parsed(model).graph)
    score = facts.prediction if facts.logits is None or facts.members is not None else facts.logits
    needed = query.ancestors([by_name[score]])
    names = [n for n in facts.inputs if by_name[n].dtype in query.FLOATS and by_name[n] in needed]
    if not names:
        return {}, {}, set()
    fed = feed_inputs(model, facts, rows)
    input_names = dict(zip(rows.inputs, fed, strict=True)) if len(rows.inputs) == len(fed) == 1 else {n: n for n in fed}
    columns = {
        column: float_places
        for column, places in places_by_column.items()
        if (float_places := [(input_names[name], i) for name, i in places if input_names.get(name) in names])
        and all(fed[name].ndim == (1 if i is None else 2) for name, i in float_places)
    }
    totals, entries = dict.fromkeys(columns, 0.0), {name: np.zeros(fed[name].shape[1:]) for name in names}
    for moved in _moves(work, (model, weights), score, names, fed):
        for name in names:
            entries[name] += abs(moved[name]).sum(axis=0)
        for column, places in columns.items():
            moves = [moved[name] if i is None else moved[name][:, i] for name, i in places]
            totals[column] += float(abs(np.sum(moves, axis=0)).sum())
    count = len(rows.label)
    maps = {name: array / count for name, array in entries.items() if array.ndim > 1}
    return {c: total / count for c, total in totals.items()}, maps, {n for n in input_names if input_names[n] in names}


def _moves(
    work: Work, model: tuple[onnx.ModelProto, Weights], score: str, names: Sequence[str], fed: Arrays
) -> Iterator[dict[str, np.ndarray]]:
    """Yield (xᵢ − x̄ᵢ) · ∂s/∂xᵢ by input, for pieces of the rows and each score of theirs."""
    facts, forward = work.artifact.facts, Session(model[0], work.runtime, weights=model[1])
    gradient_model, weights = gradient_apart(
        *model, score, names, kind="vjp", ones=False, value=False, shape={}, function=None
    )
    backward = Session(gradient_model, work.runtime, weights=weights)
    [cotangent] = [value for value in gradient_model.graph.input if value.name not in facts.inputs]
    width = [dim.dim_value for dim in cotangent.type.tensor_type.shape.dim]
    means = {name: np.nanmean(fed[name], axis=0, dtype=np.float64) for name in names}
    for first in range(0, len(fed[names[0]]), PIECE):
        piece = {name: array[first : first + PIECE] for name, array in fed.items()}
        [prediction] = forward.run(piece, [facts.prediction])
        for direction in _cotangents(facts, prediction, width):
            gradients = backward.run({**piece, cotangent.name: direction}, [f"{name}_grad" for name in names])
            offsets = [piece[name].astype(np.float64) - means[name] for name in names]
            yield {  # a missing value counts as the mean
                name: np.where(np.isnan(offset), 0, offset * gradient)
                for name, offset, gradient in zip(names, offsets, gradients, strict=True)
            }


def _cotangents(facts: Facts, prediction: np.ndarray, width: list[int]) -> Iterator[np.ndarray]:
    """Yield the cotangents: one that selects the predicted class of each row and element, or one for each output."""
    label, probability = predicted(facts, prediction)
    axis = -1 if facts.class_axis is None else facts.class_axis
    if probability is not None and facts.task in CLASSES:
        columns = 1 if axis == len(width) else width[axis]  # a score of two classes may be one number
        selections = [np.eye(columns)[label if columns > 1 else np.zeros_like(label)]]
    else:
        selections = [np.broadcast_to(row, label.shape) for row in np.eye(label.shape[-1])]
    for selection in selections:
        placed = selection[..., 0] if axis == len(width) else np.moveaxis(selection, -1, axis)
        yield placed.astype(prediction.dtype)


def importance_of_columns(work: Work, defined: Collection[str]) -> dict[str, dict[str, list[float]]]:
    """Return the importance of each column of the test rows for the prediction's metrics that have a value."""
    facts, model, session = work.artifact.facts, work.artifact.signature, work.session("trained")
    sample = sample_of(work)
    true = truth(facts, sample.label)

    def predict(rows: Rows) -> Compared:
        [prediction] = session.run(feed_inputs(model, facts, rows), [facts.prediction])
        return compared(facts, true, prediction, sample.sample_weight)

    metrics = {name: metric for name, metric in of_head(work.names, "").items() if name in defined}
    return importance(metrics, sample, predict, work.config.importance, work.config.seed)


def sample_of(work: Work) -> Rows:
    """Return the test rows whose columns are measured."""
    return concatenate(list(work.rows.pieces(min(MOST_ROWS, work.most))))


def importance(
    metrics: Mapping[str, Metric], rows: Rows, predict: Callable[[Rows], Compared], repeats: int, seed: int
) -> dict[str, dict[str, list[float]]]:
    """Return, for each metric and column, the mean and deviation of how much worse the metric is without it.

    Positive: the metric needs the column. The columns are those of the user's table: the features of one word column
    are shuffled together. The orders, and so the values, are those of `sklearn.inspection.permutation_importance`.
    """
    columns = places_of(rows)

    def scores(rows: Rows) -> np.ndarray:
        entries = predict(rows)
        return np.array([metric(*entries) * (1 if metric.greater_is_better else -1) for metric in metrics.values()])

    best = scores(rows)
    worse = np.array(
        [
            [best - scores(_reordered(rows, places, order)) for order in _orders(len(rows.label), repeats, seed)]
            for places in columns.values()
        ]
    )
    numbers = np.stack([worse.mean(axis=1), worse.std(axis=1)], axis=-1)  # [columns, metrics, 2]
    return {name: dict(zip(columns, numbers[:, m].tolist(), strict=True)) for m, name in enumerate(metrics)}


def _orders(count: int, repeats: int, seed: int) -> Iterator[np.ndarray]:
    """Yield random orders, each a shuffle of the one before."""
    random = np.random.RandomState(np.random.RandomState(seed).randint(2**31))
    order, index = np.arange(count), np.arange(count)
    for _ in range(repeats):
        random.shuffle(index)
        order = order[index]
        yield order


def places_of(rows: Rows) -> dict[str, Places]:
    """Return the places of each column of the user's table; an input of more than two dimensions is one column."""
    places: dict[str, Places] = {}
    for name, array in rows.inputs.items():
        if array.ndim != 2:
            places[name] = [(name, None)]
            continue
        column_names = rows.columns.get(name) or [f"{name}[{i}]" for i in range(array.shape[1])]
        for i, column in enumerate(column_names):
            places.setdefault(column, []).append((name, i))
    return places


def _reordered(rows: Rows, places: Places, order: np.ndarray) -> Rows:
    """Return the rows with a column in another order."""
    inputs = dict(rows.inputs)
    for name, column in places:
        at = ... if column is None else (slice(None), column)
        inputs[name] = inputs[name].copy()
        inputs[name][at] = rows.inputs[name][at][order]
    return rows.replace(inputs=inputs)
