"""The outputs to train: further heads, and the prediction, which agrees with the file's own labels or the rows'."""

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.data.rows import Rows
from ortpipe.errors import ConvertError, ModelError, nearest
from ortpipe.graph.core import query
from ortpipe.graph.core.selection import some
from ortpipe.metrics.elements import classes_last
from ortpipe.stages.convert.forward import Meaning
from ortpipe.stages.convert.prediction.heads import Head, read_head
from ortpipe.stages.convert.prediction.meaning import without_ones
from ortpipe.stages.convert.reading.reading import Reading
from ortpipe.stages.convert.rows.batch import Original
from ortpipe.stages.convert.rows.compared_rows import compared_rows

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


def choose_prediction(reading: Reading) -> str:
    """Return the output to train: the config's or the file's choice, or the one that fits labels."""
    graph, config, data = reading.graph, reading.config, reading.data
    chosen = config.prediction if config.prediction is not None else reading.metadata.get("prediction")
    output, reading.labelled = _prediction(graph, chosen), bool(label_outputs(graph))
    floats = [o for o in graph.outputs if o.dtype in query.FLOATS and o.name not in config.heads]
    candidates = [o for o in floats if query.float_initializers(graph, o)]
    if chosen is None and data is not None and candidates:
        rows = compared_rows(data)
        output, classes = choose_output(reading.model, reading.original, candidates, rows, reading.meaning_of)
        indices = tuple(range(len(classes or ())))  # a file may compute these beside the names of classes
        is_told = classes != reading.classes and (classes != indices or {*(reading.classes or ())} == {*indices})
        if classes is not None and is_told and config.classes is None:
            reading.classes = classes
            listed_labels = some([str(label) for label in classes])
            reading.notes.append(
                f"the columns of {output.name!r} are {listed_labels}, by the labels that the file computes"
            )
    if not query.float_initializers(graph, output):
        raise ConvertError(
            "A prediction must depend on at least one float initializer, or on a constant that is a weight.",
            got=f"{config.origin}: none for output {output.name!r}",
            fix="Choose another output with {at}prediction, or name constants that are weights in {at}lift.",
        )
    return str(output.name)


def check_heads(reading: Reading, prediction: str) -> list[str]:
    """Return the names of the heads; reject names that are no float outputs, or the prediction."""
    outputs = {str(o.name): o for o in reading.graph.outputs}
    for name in reading.config.heads:
        output = outputs.get(name)
        candidates = [n for n, o in outputs.items() if n != prediction and o.dtype in query.FLOATS]
        if name not in candidates:
            actual = "the prediction itself" if name == prediction else "no output" if output is None else output.dtype
            rule, fix = "{key} must name float outputs beside the prediction.", nearest(name, candidates)
            raise ConvertError(rule, key="heads", got=f"{name!r}, {actual}", fix=fix)
        if not query.float_initializers(reading.graph, outputs[name]):
            rule, fix = "A head must depend on at least one float initializer.", "Leave it out of {key}."
            raise ConvertError(rule, key="heads", got=f"none for output {name!r}", fix=fix)
    return list(reading.config.heads)


def _prediction(graph: ir.Graph, choice: str | int | None) -> ir.Value:
    names = [str(o.name) for o in graph.outputs]
    if isinstance(choice, int):
        if not 0 <= choice < len(names):
            rule, fix = "{key} must be an output's index.", f"The model has {len(names)}: {', '.join(names)}."
            raise ConvertError(rule, key="prediction", got=choice, fix=fix)
        choice = names[choice]
    if choice is not None and choice not in names:
        rule, values = "{key} must be an output, or a value inside of the graph.", query.values(graph).items()
        close = difflib.get_close_matches(choice, [name for name, value in values if value.producer() is not None])
        raise ConvertError(rule, key="prediction", got=repr(choice), fix=nearest(choice, {*names, *close}))
    floats = [o for o in graph.outputs if o.dtype in query.FLOATS and choice in (None, o.name)]
    if not floats:
        candidates = [o for o in graph.outputs if choice in (None, o.name)]
        ancestors = query.ancestors(candidates)
        inner = [v for node in graph for v in node.outputs if v in ancestors and v.dtype in query.FLOATS]
        scores = next((f": {v.name!r}." for v in reversed(inner) if query.float_initializers(graph, v)), ".")
        raise ConvertError(
            "A model needs a float output to train.",
            got=f"outputs {', '.join(str(o.name) for o in candidates)}",
            key="prediction",
            fix="Name a float value inside of the graph with {key}, such as the scores in front of the labels" + scores,
        )
    return next((o for o in floats if query.float_initializers(graph, o)), floats[0])


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
