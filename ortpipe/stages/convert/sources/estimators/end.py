"""The end of an estimator's graph: what its values are, the labels, and what scikit-learn itself says there."""

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Task
from ortpipe.errors import ConvertError
from ortpipe.graph.builder import Builder
from ortpipe.stages.convert.sources.estimators.objective import Objective

Classes = tuple[int | str, ...]


class End(NamedTuple):
    """The end of an estimator's graph before its outputs are named.

    A classifier that scikit-learn gives no probabilities has its scores as prediction: they are its logits too.
    """

    task: Task
    logits: ir.Value | None  # [N, K], or [N, 1] for two classes
    prediction: ir.Value  # values [N, K], probabilities [N, K], or the logits
    ranking: ir.Value | None = None  # what the label is the largest of, where that is not the prediction
    objective: Objective | None = None
    notes: tuple[str, ...] = ()
    rounding: float = 0.0  # how far scikit-learn's own prediction may be off

    @property
    def is_scores(self) -> bool:
        """Whether the prediction is raw scores."""
        return self.prediction is self.logits


def two_columns(op: Builder, p: ir.Value) -> ir.Value:
    """[1 − p, p]: the probabilities of both classes."""
    return op.Concat(op.Sub(1, p), p, axis=-1)


def shaped(value: ir.Value, width: int) -> ir.Value:
    """Return a value that is said to be [N, width], which later operators and the label are written by."""
    value.shape = ir.Shape(["N", width])
    return value


def log_sigmoid(op: Builder, z: ir.Value) -> ir.Value:
    """Log σ(z) = (z − |z|)/2 − log(1 + exp(−|z|)), which never overflows."""
    size = op.Abs(z)
    tail = op.Log(op.Add(op.Exp(op.Neg(size)), 1))
    return op.Sub(op.Mul(op.Sub(z, size), op.like(0.5, z)), tail)


def scores_end(op: Builder, scores: ir.Value, classes: Any, objective: Objective | None = None) -> End:
    """Return the end of a classifier that predicts raw scores, [N, 1] of two classes."""
    task: Task = "binary" if len(classes) == 2 else "multiclass"
    shaped(scores, 1 if task == "binary" else len(classes))
    return End(task, scores, scores, objective=objective)


def softmax_end(op: Builder, logits: ir.Value, classes: Any, objective: Objective | None = None) -> End:
    """Return the end of a classifier whose probabilities are the softmax of one column for each class."""
    task: Task = "binary" if len(classes) == 2 else "multiclass"
    return End(task, shaped(logits, len(classes)), op.Softmax(logits, axis=-1), objective=objective)


def sigmoid_end(op: Builder, logits: ir.Value, objective: Objective | None = None) -> End:
    """Return the end of a classifier of two classes whose p is σ(z)."""
    return End("binary", shaped(logits, 1), two_columns(op, op.Sigmoid(logits)), objective=objective)


def plain_classes(classes: Any) -> Classes:
    """Return class labels as int or str."""
    plain = np.asarray(classes).tolist()
    for label in plain:
        if not isinstance(label, str) and not float(label).is_integer():
            rule = "Class labels are strings or whole numbers."
            raise ConvertError(rule, got=repr(label), fix="Encode the labels first.")
    return tuple(label if isinstance(label, str) else int(label) for label in plain)


def label_of(op: Builder, end: End, classes: Classes | None) -> ir.Value:
    """Return the predicted label: the class that ranks highest, z > 0 of one score, of several labels each p > ½."""
    values = end.prediction if end.ranking is None else end.ranking
    if classes is None:
        return op.Cast(op.Greater(values, 0 if end.is_scores else 0.5), to=ir.DataType.INT64)
    if values.shape is not None and values.shape[-1] == 1:
        index = op.Cast(op.Squeeze(op.Greater(values, op.like(0, values)), [-1]), to=ir.DataType.INT64)
    else:
        index = op.ArgMax(values, axis=1, keepdims=0)
    strings = any(isinstance(label, str) for label in classes)
    return op.Gather(op.const(np.array(classes, str if strings else np.int64)), index)


def source_values(estimator: Any, end: End, rows: Any) -> np.ndarray:
    """Return what scikit-learn predicts for rows, in the form of the graph's prediction."""
    if end.task == "regression":
        return np.asarray(estimator.predict(rows))
    values = estimator.decision_function(rows) if end.is_scores else estimator.predict_proba(rows)
    if isinstance(values, list):  # one [N, 2] for each label
        return np.stack([one[:, 1] if one.ndim == 2 else one for one in values], axis=1)
    return np.asarray(values)
