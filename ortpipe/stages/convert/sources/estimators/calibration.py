"""Classifiers with calibrated probabilities: Platt's sigmoid, or one temperature."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.origins import within
from ortpipe.stages.convert.sources.estimators import end_of
from ortpipe.stages.convert.sources.estimators.attributes import member, parameter
from ortpipe.stages.convert.sources.estimators.end import End, log_sigmoid, sigmoid_end, softmax_end
from ortpipe.stages.convert.sources.estimators.meta import weighted_mean
from ortpipe.stages.convert.sources.estimators.objective import averaged


def calibrated(op: Builder, estimator: Any, x: Any, dtype: Any) -> End:
    """The mean of σ(−(a·z + b)) over calibrated classifiers; for several classes scaled to sum 1."""
    parts = []
    for i, part in enumerate(estimator.calibrated_classifiers_):
        with member(op, f"fold{i}", "calibrated_classifiers_", i):
            parts.append(_part(op, part, x, dtype))
    p = parts[0].prediction if len(parts) == 1 else weighted_mean(op, [part.prediction for part in parts])
    end = parts[0] if len(parts) == 1 else End(parts[0].task, None, p)
    lacking = "separate fits of its calibrators on other rows (training updates all together)"
    loss = "log" if end.task == "binary" else "cross_entropy"
    return end._replace(objective=averaged(loss, missing=lacking), ranking=p)


def _part(op: Builder, part: Any, x: Any, dtype: Any) -> End:
    """Return the end of one classifier with its calibrators."""
    with within(op.graph, "estimator"):
        end = end_of(op, part.estimator, x, dtype)
    count = len(part.classes)
    if part.method == "sigmoid" and len(part.estimator.classes_) == count:
        return _platt(op, part, _scores(op, part.estimator, end), count, dtype)
    if part.method == "temperature" and end.logits is not None and hasattr(part.estimator, "decision_function"):
        with member(op, "calibrator", "calibrators", 0):
            inverse = parameter(op, part.calibrators[0], "beta", "beta_", ["reshape", 1], dtype=dtype)
        z = op.Mul(end.logits, inverse)
        if count == 2:  # softmax(β·[−z, z])
            return sigmoid_end(op, op.Mul(z, 2))
        return softmax_end(op, z, part.classes)
    raise ConvertError(
        "A calibrator must be Platt's sigmoid, or a temperature of decision_function.",
        got=f"method={part.method!r} of {type(part.estimator).__name__}",
        fix="Set method='sigmoid'.",
    )


def _scores(op: Builder, estimator: Any, end: End) -> ir.Value:
    """Return the input of the calibrators: decision_function if the classifier has one, else probabilities."""
    if hasattr(estimator, "decision_function"):
        scores = end.ranking if end.ranking is not None else end.logits
        if scores is not None:
            return scores
    if end.task == "binary" and not end.is_scores:
        return op.Gather(end.prediction, op.const(np.array([1])), axis=1)
    return end.prediction


def _platt(op: Builder, part: Any, scores: ir.Value, count: int, dtype: Any) -> End:
    """σ(−(a·z + b)): of one column the second class's p; several are scaled to sum 1."""
    columns = []
    for k, calibrator in enumerate(part.calibrators):
        with member(op, f"calibrator{k}", "calibrators", k):
            a = parameter(op, calibrator, "a", "a_", ["reshape", 1], dtype=dtype)
            b = parameter(op, calibrator, "b", "b_", ["reshape", 1], dtype=dtype)
        column = scores if count == 2 else op.Gather(scores, op.const(np.array([k])), axis=1)
        columns.append(op.Neg(op.Add(op.Mul(column, a), b)))
    if count == 2:
        return sigmoid_end(op, columns[0])
    return softmax_end(op, log_sigmoid(op, op.Concat(*columns, axis=-1)), part.classes)
