"""The end of an estimator's graph: its prediction, its labels, and scikit-learn's own prediction to compare with."""

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Task
from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder
from ortpipe.stages.convert.sources.estimators.objective import Objective

Classes = tuple[int | str, ...]


class End(NamedTuple):
    """The end of an estimator's graph before its outputs are named.

    A classifier without probabilities in scikit-learn predicts its scores, which are its logits too.
    """

    task: Task
    logits: ir.Value | None  # [N, K], or [N, 1] for two classes
    prediction: ir.Value  # values [N, K], probabilities [N, K], or the logits
    ranking: ir.Value | None = None  # the label is the class of its largest entry; None: of the prediction's
    objective: Objective | None = None
    notes: tuple[str, ...] = ()
    rounding: float = 0.0  # error of scikit-learn's own prediction

    @property
    def is_scores(self) -> bool:
        """Whether the prediction is raw scores."""
        return self.prediction is self.logits


def two_columns(op: Builder, p: ir.Value) -> ir.Value:
    """[1 − p, p]: the probabilities of both classes."""
    return op.Concat(op.Sub(1, p), p, axis=-1)


def with_width(value: ir.Value, width: int) -> ir.Value:
    """Set a value's shape to [N, width], which later operators and the label depend on."""
    value.shape = ir.Shape(["N", width])
    return value


def log_sigmoid(op: Builder, z: ir.Value) -> ir.Value:
    """Log σ(z) = (z − |z|)/2 − log(1 + exp(−|z|)), which never overflows."""
    size = op.Abs(z)
    tail = op.Log(op.Add(op.Exp(op.Neg(size)), 1))
    return op.Sub(op.Mul(op.Sub(z, size), op.like(0.5, z)), tail)


def scores_end(op: Builder, scores: ir.Value, classes: Any, objective: Objective | None = None) -> End:
    """Return the end of a classifier that predicts raw scores, [N, 1] for two classes."""
    task: Task = "binary" if len(classes) == 2 else "multiclass"
    with_width(scores, 1 if task == "binary" else len(classes))
    return End(task, scores, scores, objective=objective)


def softmax_end(op: Builder, logits: ir.Value, classes: Any, objective: Objective | None = None) -> End:
    """Return the end of a classifier whose probabilities are the softmax of logits [N, classes]."""
    task: Task = "binary" if len(classes) == 2 else "multiclass"
    return End(task, with_width(logits, len(classes)), op.Softmax(logits, axis=-1), objective=objective)


def sigmoid_end(op: Builder, logits: ir.Value, objective: Objective | None = None) -> End:
    """Return the end of a classifier of two classes whose p is σ(z)."""
    return End("binary", with_width(logits, 1), two_columns(op, op.Sigmoid(logits)), objective=objective)


def plain_classes(classes: Any) -> Classes:
    """Return class labels as int or str."""
    labels = np.asarray(classes).tolist()
    for label in labels:
        if not isinstance(label, str) and not float(label).is_integer():
            rule = "Class labels must be strings or integers."
            raise ConvertError(rule, got=repr(label), fix="Encode the labels first.")
    return tuple(label if isinstance(label, str) else int(label) for label in labels)


def label_of(op: Builder, end: End, classes: Classes | None) -> ir.Value:
    """Return the predicted label: the class that ranks highest, z > 0 for one score, p > ½ for several labels."""
    values = end.prediction if end.ranking is None else end.ranking
    if classes is None:
        return op.Cast(op.Greater(values, 0 if end.is_scores else 0.5), to=ir.DataType.INT64)
    if values.shape is not None and values.shape[-1] == 1:
        index = op.Cast(op.Squeeze(op.Greater(values, op.like(0, values)), [-1]), to=ir.DataType.INT64)
    else:
        index = op.ArgMax(values, axis=1, keepdims=0)
    strings = any(isinstance(label, str) for label in classes)
    return op.Gather(op.const(np.array(classes, str if strings else np.int64)), index)


def write_outputs(op: Builder, end: End, classes: Classes | None) -> None:
    """Name the end's values as skl2onnx does; make the prediction, and a classifier's label, the graph's outputs."""
    if end.logits is not None:
        op.rename(end.logits, "scores" if end.is_scores else "logits")
    if end.task == "regression":
        op.graph.outputs.append(op.rename(end.prediction, "prediction"))
        return
    if not end.is_scores:
        op.rename(end.prediction, "probabilities")
    op.graph.outputs.extend([op.rename(label_of(op, end, classes), "label"), end.prediction])


def source_values(estimator: Any, end: End, rows: Any) -> np.ndarray:
    """Return scikit-learn's prediction for rows, in the form of the graph's prediction."""
    if end.task == "regression":
        return np.asarray(estimator.predict(rows))
    values = estimator.decision_function(rows) if end.is_scores else estimator.predict_proba(rows)
    if isinstance(values, list):  # one [N, 2] for each label
        return np.stack([columns[:, 1] if columns.ndim == 2 else columns for columns in values], axis=1)
    return np.asarray(values)
