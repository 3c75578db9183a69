"""The labels of training rows: the task, the classes, and the scale of a network by config that fits them."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.facts import Task
from ortpipe.graph.core.builder import Builder
from ortpipe.stages.convert.sources.outputs import plain_classes, two_columns

MOST_CLASSES = 20  # up to so many different integers are classes
OVERRIDE = "convert.source.task says otherwise"


class NetworkEnd(NamedTuple):
    """The values at a network's end."""

    prediction: ir.Value
    logits: ir.Value | None  # None: there are none
    members: ir.Value | None = None  # of an ensemble, [N, members, K]


@dataclass(frozen=True)
class LabelKind:
    """The task and scale of the training rows' labels."""

    task: Task
    width: int  # raw outputs
    classes: tuple[int | str, ...] | None = None
    mean: np.ndarray = field(default_factory=lambda: np.zeros(1))  # [width] of a regression
    scale: np.ndarray = field(default_factory=lambda: np.ones(1))  # likewise
    notes: tuple[str, ...] = ()

    @property
    def scaled(self) -> bool:
        """Whether the labels have another mean or deviation than raw outputs, 0 and 1."""
        return bool((self.scale != 1).any() or self.mean.any())

    def end(self, op: Builder, raw: ir.Value) -> NetworkEnd:
        """Return the values behind raw outputs: predictions in the labels' units, or probabilities and logits."""
        if self.task == "regression":
            return NetworkEnd(self.in_units(op, raw), None)
        p = op.Softmax(raw, axis=-1) if self.task == "multiclass" else op.Sigmoid(raw)
        return NetworkEnd(two_columns(op, p) if self.task == "binary" else p, raw)

    def in_units(self, op: Builder, raw: ir.Value) -> ir.Value:
        """Return raw outputs of a regression in the labels' units."""
        if not self.scaled:
            return raw
        assert raw.dtype is not None
        scale, mean = (op.const(array.astype(raw.dtype.numpy())) for array in (self.scale, self.mean))
        return op.Add(op.Mul(raw, scale), mean)


def read_labels(
    label: np.ndarray,
    task: Task | None,
    weight: np.ndarray | None = None,
    *,
    scaled: bool = True,
    classes: tuple[int | str, ...] | None = None,
) -> LabelKind:
    """Return the kind of labels [N] or [N, K], inferred unless it is configured.

    >>> read_labels(np.array(["no", "yes", "no"]), None).task, read_labels(np.array([0.5, 2.0]), None).task
    ('binary', 'regression')
    """
    has_columns = label.ndim == 2 and label.shape[1] > 1
    column = label if has_columns else label.reshape(len(label)) if label.ndim == 2 else label
    if column.ndim > 2:
        raise ConvertError(
            "A network by config predicts one label, or a vector of them, for each row.",
            got=f"labels of shape {label.shape}",
            fix="Give an .onnx file for steps or pixels: convert=onnx.",
        )
    if classes is None:
        inferred, why = _task_of(column)
    else:
        inferred, why = ("binary" if len(classes) == 2 else "multiclass"), ""
    notes = () if task is not None or not why else (f"labels are {why}: a {inferred} model; {OVERRIDE}",)
    task = task or inferred
    if task == "multilabel":
        if column.dtype.kind not in "biuf":
            rule, fix = "Several labels of a row must be columns of 0 and 1.", "Leave {key} out, or give such columns."
            raise ConvertError(rule, key="task", got=f"labels of text, such as {str(column.flat[0])!r}", fix=fix)
        return LabelKind(task, column.shape[1] if has_columns else 1, notes=notes)
    if task == "regression":
        if column.dtype.kind not in "biuf":
            rule = "Labels of a regression must be numbers."
            raise ConvertError(
                rule, key="task", got=f"labels of {column.dtype}", fix="Leave {key} out: text is a class."
            )
        values = column.reshape(len(column), -1).astype(np.float64)
        mean, scale = moments(values, weight) if scaled else (np.zeros(values.shape[1]), np.ones(values.shape[1]))
        return LabelKind(task, values.shape[1], None, mean, scale, notes)
    if has_columns:
        rule = "A classifier's labels must be one class per row."
        raise ConvertError(
            rule, key="task", got=f"labels of shape {label.shape}", fix="Set {key}=multilabel or regression."
        )
    classes = classes or plain_classes(np.unique(np.array(column.tolist())))
    if len(classes) < 2 or (task == "binary" and len(classes) != 2):
        raise ConvertError(
            "A classifier must have two classes or more in the training rows, a binary one exactly two.",
            key="task",
            got=f"{len(classes)} in labels of a {task} model",
            fix="Set {key}=regression if they are values, or =multiclass.",
        )
    return LabelKind(task, 1 if task == "binary" else len(classes), classes, notes=notes)


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
    values = np.unique(np.array(label.tolist()))
    if values.dtype.kind in "iu" and len(values) > MOST_CLASSES:
        return "regression", f"{len(values)} whole numbers"
    note = f"{len(values)} whole numbers" if values.dtype.kind in "iu" else ""
    return ("binary" if len(values) == 2 else "multiclass"), note


def moments(values: np.ndarray, weight: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return weighted mean and deviation over rows; the deviation of constant columns is 1."""
    values = values.astype(np.float64)
    mean = np.average(values, axis=0, weights=weight)
    deviation = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weight))
    return mean, np.where(deviation > 0, deviation, 1.0)
