"""Which output is the prediction: the one that agrees with the file's own labels, else with those of the rows."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.data.rows import Rows
from ortpipe.errors import ConvertError, ModelError
from ortpipe.graph.core import query
from ortpipe.metrics.predictions import classes_last
from ortpipe.stages.convert.forward import Meaning
from ortpipe.stages.convert.prediction.heads import Head, read_head
from ortpipe.stages.convert.prediction.meaning import without_ones
from ortpipe.stages.convert.rows.batch import Original

LABELS = "biuO"  # kinds of types of an output that makes the model a classifier
AGREE = 0.9  # share of rows; the votes of support vectors may differ from their probabilities
INNER = 40  # values in front of the labels that are tried for a message

Class = int | str
MeaningOf = Callable[[str, Head], Callable[[np.ndarray | None], Meaning]]


class Agreement(NamedTuple):
    """How a prediction agrees with labels."""

    share: float  # of rows that have the label of their index, where no two indices share one
    classes: Mapping[int, Class]  # the label of each index, most of the time

    @property
    def in_order(self) -> bool:
        """Whether labels that are integers are the indices themselves."""
        return all(not isinstance(label, int) or k == label for k, label in self.classes.items())


def label_outputs(graph: ir.Graph) -> list[ir.Value]:
    """Return the outputs of a label type that depend on weights."""
    labels = [o for o in graph.outputs if o.dtype and o.dtype.numpy().kind in LABELS]
    return [o for o in labels if query.float_initializers(graph, o)]


def choose_output(
    model: ir.Model, original: Original, candidates: Sequence[ir.Value], rows: Rows, meaning: MeaningOf
) -> tuple[ir.Value, tuple[Class, ...] | None]:
    """Return the output to train, and the label of each column where the file's own labels tell.

    All candidates run on these rows. If the file computes labels, it is the output that agrees with them, else the
    only one that fits the labels of the rows, or the first if none does.
    """
    label_values = label_outputs(model.graph)
    if len(candidates) < 2 and not label_values:
        return candidates[0], None
    try:
        inputs = original.rows(len(rows))
        results, *truths = ({v: original.run(inputs, str(v.name)) for v in part} for part in (candidates, label_values))
    except ModelError:  # of rows that do not fit, which a later step names
        return candidates[0], None
    whole = {v: a for v, a in results.items() if (a == np.floor(a)).all() and len(np.unique(a)) > 1}  # labels as floats
    for labels, truth in (truths[0] | whole).items():
        matches = {v: match for v, a in results.items() if v is not labels and (match := agreement(a, truth))}
        agree = [value for value, match in matches.items() if match.share >= AGREE]
        if agree:
            value = min(agree, key=lambda value: not matches[value].in_order)
            return value, _classes(matches[value], max(2, results[value].shape[-1]))
        if matches and labels not in whole:
            raise _contradiction(model.graph, original, labels, truth, matches, inputs)
    fits = {value: _fit(model, value, result, rows.label, meaning) for value, result in results.items()}
    best = [value for value in candidates if fits[value] == max(fits.values()) > 0]
    if any(not _same(results[best[0]], results[value], rows.label) for value in best[1:]):
        raise ConvertError(
            "Of several outputs that fit the labels, one must be chosen.",
            key="prediction",
            got=", ".join(f"{value.name} {list(results[value].shape[1:])}" for value in best),
            fix=f"Set {' or '.join(f'{{key}}={value.name}' for value in best)}.",
        )
    return (best or candidates)[0], None


def _fit(model: ir.Model, value: ir.Value, result: np.ndarray, label: np.ndarray, meaning: MeaningOf) -> int:
    """Return 0 if an output does not fit labels, 2 if it has just as many columns as they have classes, else 1."""
    trial = model.clone()
    try:
        head = read_head(trial.graph, query.value(trial.graph, str(value.name)))
        reading = meaning(str(value.name), head)(result)
    except ConvertError:
        return 0
    if result.ndim == 0 or reading.task in ("regression", "multilabel"):
        return int(result.size == label.size)
    columns = classes_last(result, reading.class_axis).shape[-1]
    if result.size != label.size * columns:
        return 0
    return 2 if label.dtype.kind in "iub" and label.max() + 1 == max(2, columns) else 1


def _same(first: np.ndarray, other: np.ndarray, label: np.ndarray) -> bool:
    """Return whether two outputs predict the same labels, as a probability and its score do, or the same numbers."""
    indices = [_index(values, label.shape) for values in (first, other)]
    measured = first.size == label.size and len(np.unique(label)) > 2  # one number per label, which is no side of two
    if indices[0] is None or indices[1] is None or measured:
        return first.shape == other.shape and np.allclose(first, other)
    return bool((indices[0] == indices[1]).all())


def agreement(prediction: np.ndarray, labels: np.ndarray) -> Agreement | None:
    """Return how a prediction's largest column, or a single column's side of the threshold, agrees with labels.

    None: they have no shape in common, as boxes and the label of an image.

    >>> agreement(np.array([[0.2, 0.8], [0.9, 0.1]]), np.array([1, 0]))
    Agreement(share=1.0, classes={0: 0, 1: 1})
    """
    index = _index(prediction, labels.shape)
    if index is None or not labels.size:
        return None
    names, codes = np.unique(labels.astype(str if labels.dtype == object else np.int64), return_inverse=True)
    counts = np.zeros((int(index.max()) + 1, len(names)), int)
    np.add.at(counts, (index.ravel(), codes.ravel()), 1)
    classes = {k: names[row.argmax()].item() for k, row in enumerate(counts) if row.any()}
    distinct = len({*classes.values()}) == len(classes)
    return Agreement(float(counts.max(axis=1).sum() / labels.size) if distinct else 0.0, classes)


def _index(prediction: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return the index of the largest column for each label, or whether a single column exceeds the threshold."""
    for axis in range(prediction.ndim - 1, 0, -1):
        rest = prediction.shape[:axis] + prediction.shape[axis + 1 :]
        if prediction.shape[axis] > 1 and without_ones(rest) == without_ones(shape):
            return prediction.argmax(axis=axis)
    if without_ones(prediction.shape) != without_ones(shape):
        return None
    is_share = prediction.min() >= 0 and prediction.max() <= 1
    return (prediction > (0.5 if is_share else 0)).astype(int)


def _classes(match: Agreement, columns: int) -> tuple[Class, ...] | None:
    """Return the label of each column; None if rows do not show all of them."""
    classes = dict(match.classes)
    if columns == 2 and len(classes) == 1 and not match.in_order:
        [(k, label)] = classes.items()
        classes |= {1 - k: 1 - int(label)} if label in (0, 1) else {}
    return tuple(classes[k] for k in range(columns)) if len(classes) == columns else None


def _contradiction(
    graph: ir.Graph,
    original: Original,
    labels: ir.Value,
    truth: np.ndarray,
    matches: Mapping[ir.Value, Agreement],
    inputs: Mapping[str, np.ndarray],
) -> ConvertError:
    """Return the error that names a value inside of the graph which agrees with the labels, if any does."""
    ancestors, file = query.ancestors([labels]), onnx.ModelProto()
    file.CopyFrom(original.model)
    computed = {name for node in file.graph.node for name in node.output} - {value.name for value in file.graph.output}
    inner = [v for node in graph for v in node.outputs if v in ancestors and v.dtype in query.FLOATS]
    names = [str(value.name) for value in reversed(inner) if value.name in computed][:INNER]
    file.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    run: Any = dataclasses.replace(original, model=file).run
    tried = ((name, agreement(run(inputs, name), truth)) for name in names)
    name = next((name for name, match in tried if match and match.share >= AGREE and match.in_order), None)
    shares = ", ".join(f"{value.name!r} in {match.share:.0%}" for value, match in matches.items())
    inside = f"Set {{key}}={name}, which agrees" if name else "Name with {key} a value inside of the graph that agrees"
    return ConvertError(
        "The prediction must agree with the labels that the file itself computes.",
        key="prediction",
        got=f"labels {labels.name!r} of {len(truth)} rows; the largest column, or the side of the threshold, agrees of "
        f"{shares} of them",
        fix=f"{inside}; the graph then ends there. If these are no labels of its output, set {{key}} to that output.",
    )
