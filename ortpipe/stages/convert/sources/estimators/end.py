"""The end of an estimator's graph: its prediction, its labels, and scikit-learn's own prediction to compare with."""

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Task
from ortpipe.graph.core.builder import Builder
from ortpipe.stages.convert.objective import Objective
from ortpipe.stages.convert.sources.outputs import two_columns


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


def source_values(estimator: Any, end: End, rows: Any) -> np.ndarray:
    """Return scikit-learn's prediction for rows, in the form of the graph's prediction."""
    if end.task == "regression":
        return np.asarray(estimator.predict(rows))
    values = estimator.decision_function(rows) if end.is_scores else estimator.predict_proba(rows)
    if isinstance(values, list):  # one [N, 2] for each label
        return np.stack([columns[:, 1] if columns.ndim == 2 else columns for columns in values], axis=1)
    return np.asarray(values)
