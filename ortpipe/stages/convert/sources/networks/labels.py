"""Labels of networks by config: classes or values, the end of a classifier, and other outputs of a regression."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np
import onnx_ir as ir

from ortpipe.data.labels import MOST_CLASSES, check_survival
from ortpipe.data.rows import Data
from ortpipe.errors import ConvertError, NoRowsError
from ortpipe.facts import Task
from ortpipe.graph.core.builder import Builder
from ortpipe.metrics.survival import kaplan_meier
from ortpipe.stages.convert.forward import Meaning
from ortpipe.stages.convert.sources.networks.network import LabelKind
from ortpipe.stages.convert.sources.outputs import plain_classes, two_columns, write_class_outputs

FEWEST_ROWS, ENOUGH_ROWS = 5, 20  # of a class; and rows per integer on average, with which their frequencies are known
FEWEST_COUNTS = 6  # distinct integers, below which frequencies rise and fall by chance
OVERRIDE = "convert.source.task says otherwise"


def class_end(op: Builder, raw: ir.Value, labels: LabelKind) -> Meaning:
    """Write the outputs of a classifier behind its raw scores; return their meaning."""
    p = op.Softmax(raw, axis=-1) if labels.task == "multiclass" else op.Sigmoid(raw)
    write_class_outputs(op, two_columns(op, p) if labels.task == "binary" else p, raw, labels.classes)
    return Meaning(labels.task, str(raw.name), labels.classes)


def kind_of(column: np.ndarray, task: Task | None, classes: tuple[int | str, ...] | None) -> LabelKind:
    """Return the kind of labels [N] or [N, K], inferred unless it is configured; of values, the task alone."""
    if column.ndim > 2:
        raise ConvertError(
            "A network by config predicts one label, or a vector of them, for each row.",
            got=f"labels of shape {column.shape}",
            fix="Give an .onnx file for steps or pixels: convert=onnx.",
        )
    why = ""
    if task is None and classes is not None:
        task = "binary" if len(classes) == 2 else "multiclass"
    elif task is None:
        task, why = _task_of(column)
    notes = (f"labels are {why}: a {task} model; {OVERRIDE}",) if why else ()
    if task == "multilabel":
        if column.dtype.kind not in "biuf":
            rule, fix = "Several labels of a row must be columns of 0 and 1.", "Leave {key} out, or give such columns."
            raise ConvertError(rule, key="task", got=f"labels of text, such as {str(column.flat[0])!r}", fix=fix)
        return LabelKind(task, column.shape[1] if column.ndim == 2 else 1, notes=notes)
    if task == "regression":
        if column.dtype.kind not in "biuf":
            rule, fix = "Labels of a regression must be numbers.", "Leave {key} out: text is a class."
            raise ConvertError(rule, key="task", got=f"labels of {column.dtype}", fix=fix)
        return LabelKind(task, 0, notes=notes)
    if column.ndim == 2:
        rule, fix = "A classifier's labels must be one class per row.", "Set {key}=multilabel or regression."
        raise ConvertError(rule, key="task", got=f"labels of shape {column.shape}", fix=fix)
    classes = classes or plain_classes(np.unique(np.array(column.tolist())))
    _check_count(classes, task)
    return LabelKind(task, 1 if task == "binary" else len(classes), classes, notes=notes)


def _check_count(classes: Sequence[int | str], task: Task) -> None:
    """Reject labels of one class, and more or fewer than two of a binary classifier."""
    if len(classes) == 1:
        rule = "A classifier must have two classes or more in the training rows."
        fix = "Check which column is the label, or add rows of another class."
        raise ConvertError(rule, got=f"only {classes[0]!r} as a label", fix=fix)
    if task == "binary" and len(classes) != 2:
        raise ConvertError(
            "A binary classifier must have exactly two classes in the training rows.",
            key="task",
            got=f"{len(classes)} classes",
            fix="Set {key}=multiclass, or =regression if the labels are values.",
        )


def _task_of(label: np.ndarray) -> tuple[Task, str]:
    """Return the most likely task of labels [N] or [N, K], and if that is a guess, the evidence."""
    if label.ndim == 2:
        if np.isin(label, (0, 1)).all():
            return "multilabel", "columns of 0 and 1"
        return "regression", ""
    if label.dtype.kind == "f":
        first_values = np.unique(label)[: MOST_CLASSES + 1]
        are_integers = len(first_values) <= MOST_CLASSES and (first_values == np.trunc(first_values)).all()
        return "regression", f"{len(first_values)} whole numbers, written as 1.0" if are_integers else ""
    values, counts = np.unique(np.array(label.tolist()), return_counts=True)
    if values.dtype.kind in "iu" and len(values) > MOST_CLASSES:
        return "regression", f"{len(values)} whole numbers"
    if values.dtype.kind in "iu" and len(values) > 2:
        _check_clear(values, counts)
    note = f"{len(values)} whole numbers" if values.dtype.kind in "iu" else ""
    return ("binary" if len(values) == 2 else "multiclass"), note


def _check_clear(values: np.ndarray, counts: np.ndarray) -> None:
    """Reject a few different integers whose numbers of rows, `counts`, look like those of counts or grades."""
    if counts.sum() < ENOUGH_ROWS * len(values):
        return
    top, rare = int(counts.argmax()), values[counts < FEWEST_ROWS]
    rises_and_falls = (np.diff(counts[: top + 1]) >= 0).all() and (np.diff(counts[top:]) <= 0).all()
    why = ""
    if len(rare):
        why = f"of which {', '.join(map(str, rare.tolist()))} have fewer than {FEWEST_ROWS} training rows each"
    elif rises_and_falls and len(values) >= FEWEST_COUNTS and counts.max() >= 2 * counts.min():
        why = f"whose numbers of rows rise and fall like those of counts or grades: {', '.join(map(str, counts))}"
    if why:
        raise ConvertError(
            "Labels that are whole numbers must clearly be classes or values.",
            key="task",
            got=f"{len(values)} whole numbers from {values[0]} to {values[-1]}, {why}",
            fix="Set {key}=regression if they are values, such as counts or grades, or {key}=multiclass for classes.",
        )


def with_outputs(
    labels: LabelKind, data: Data, outputs: int | None, intervals: int | tuple[float, ...] | None, *, scaled: bool
) -> LabelKind:
    """Return the kind of labels with other raw outputs than one for each column.

    `outputs` is their number, for example of quantiles. The scale of one label column applies to all of them. With
    `intervals`, labels are times and events: the ends of intervals of time, or their number, with ends at quantiles of
    the times of events. The raw output of each interval is the logit of its hazard, at first that of all training rows
    (by Kaplan and Meier) if they are scaled.

    Raises:
        ConvertError: the labels are classes, or several columns with a scale; or all events are at time 0.
        DataError: labels are no times and events, or there is no event.
    """
    if labels.task != "regression":
        rule, fix = "Only a regression has {key}.", "Leave {key} out, or set {at}task=regression."
        raise ConvertError(rule, key="intervals" if intervals else "outputs", got=f"a {labels.task} network", fix=fix)
    if intervals:
        check_survival(data)
        times, events = np.concatenate([label.astype(np.float64) for label, _ in data.train.read_labels()]).T
        points = cut_points(times[events == 1], intervals) if isinstance(intervals, int) else intervals
        if not points:
            rule, fix = "{key} need an event after time 0.", "Set {key} to times, such as [30,60,90]."
            raise ConvertError(rule, key="intervals", got="all events at time 0", fix=fix)
        mean = logits(kaplan_meier(times, events)(np.array(points))) if scaled else np.zeros(1)
        return replace(labels, width=len(points), mean=mean, scale=np.ones(1), levels=points)
    if len(labels.mean) > 1 and labels.scaled:
        rule, fix = "Several quantiles need labels of one column.", "Choose one as {@data.source.label}."
        raise ConvertError(rule, got=f"{len(labels.mean)} columns", fix=fix)
    return replace(labels, width=outputs or labels.width)


def cut_points(times: np.ndarray, count: int) -> tuple[float, ...]:
    """Return the distinct quantiles 1/count, 2/count … 1 of the times of events, each the time of an event above 0.

    >>> cut_points(np.array([1.0, 2, 2, 2, 5, 9]), 3), cut_points(np.array([4.0]), 3)
    ((2.0, 9.0), (4.0,))
    """
    shares = np.arange(1, count + 1) / count
    cuts = np.unique(np.quantile(times.astype(np.float64), shares, method="inverted_cdf"))
    return tuple(float(cut) for cut in cuts if cut > 0)


def logits(survival: np.ndarray) -> np.ndarray:
    """Return the logits of the hazards 1 − Sₖ/Sₖ₋₁ of intervals, each between 0.001 and 0.999.

    >>> logits(np.array([0.5, 0.25])).tolist()
    [0.0, 0.0]
    """
    before = np.concatenate([[1.0], survival[:-1]])
    hazard = np.clip(1 - survival / np.maximum(before, np.finfo(float).tiny), 0.001, 0.999)
    return np.log(hazard / (1 - hazard))


def need_rows() -> NoReturn:
    """Raise for a network without training rows."""
    raise NoRowsError("A network by config needs training rows, for its sizes.", got="no rows", fix="Give data.")


def reject_text(name: str, array: np.ndarray) -> NoReturn:
    """Raise for an input of text of a network that reads arrays."""
    raise ConvertError(
        "The inputs of this network must be numbers.",
        got=f"input {name!r} of {array.dtype}",
        fix="Leave out columns of text: {@data.source.inputs}={X: [age, height]}.",
    )
