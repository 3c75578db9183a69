"""Meta-estimators: an inner estimator, calibrated or not, or several joined as their mean or by a last estimator."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Task
from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.origins import within
from ortpipe.stages.convert.objective import averaged
from ortpipe.stages.convert.sources.estimators import end_of
from ortpipe.stages.convert.sources.estimators.end import (
    End,
    log_sigmoid,
    member,
    parameter,
    sigmoid_end,
    softmax_end,
    with_width,
)
from ortpipe.stages.convert.sources.sklearn_columns import as_floats

ALONE = "separate fits of its members (training updates them together)"


def searched(op: Builder, estimator: Any, x: Any, dtype: Any) -> End:
    """The best estimator of a search."""
    if not hasattr(estimator, "best_estimator_"):
        rule, fix = "A search must keep its best estimator.", "Set refit=true."
        raise ConvertError(rule, got=f"refit={estimator.refit!r}", fix=fix)
    return _only(op, estimator.best_estimator_, x, dtype, "best_estimator_")


def inner(op: Builder, estimator: Any, x: Any, dtype: Any) -> End:
    """The inner estimator, which was fitted on selected rows."""
    end = _only(op, estimator.estimator_, x, dtype, "estimator_")
    lacking = "its selection of rows (training uses all rows)"
    return end._replace(objective=end.objective and dataclasses.replace(end.objective, missing=lacking))


def frozen(op: Builder, estimator: Any, x: Any, dtype: Any) -> End:
    """The inner estimator, already fitted."""
    return _only(op, estimator.estimator, x, dtype, "estimator")


def _only(op: Builder, estimator: Any, x: Any, dtype: Any, *step: str) -> End:
    with within(op.graph, *step):
        return end_of(op, estimator, x, dtype)


def threshold(op: Builder, estimator: Any, x: Any, dtype: Any) -> End:
    """The inner classifier, with another threshold of scores for its label."""
    step = "estimator_" if hasattr(estimator, "estimator_") else "estimator"
    classifier = getattr(estimator, step)
    end = _only(op, classifier, x, dtype, step)
    limit = getattr(estimator, "best_threshold_", getattr(estimator, "threshold", "auto"))
    if limit == "auto":
        return end
    response = getattr(estimator, "response_method", "auto")
    by_probability = hasattr(classifier, "predict_proba") if response == "auto" else response == "predict_proba"
    positive = getattr(estimator, "pos_label", None)
    sign = -1 if positive is not None and positive == classifier.classes_[0] else 1
    if by_probability:
        score = op.Gather(end.prediction, op.const(np.array([max(sign, 0)])), axis=1)
    else:
        score = op.Mul(margin(op, end), sign)
    return end._replace(ranking=with_width(op.Mul(op.Sub(score, op.like(float(limit), score)), sign), 1))


def margin(op: Builder, end: End) -> ir.Value:
    """Return z of a classifier of two classes, [N, 1], from one column or as the difference of two."""
    z = end.logits
    if z is None:
        p = end.prediction
        rule, fix = "A member of two classes needs scores.", "Choose a member whose probabilities are σ(z)."
        raise ConvertError(rule, got=f"probabilities {p.name!r} without scores", fix=fix)
    assert z.shape is not None
    if z.shape[-1] == 1:
        return z
    signs = np.array([[-1.0], [1.0]], z.dtype.numpy() if z.dtype is not None else np.float32)
    return with_width(op.MatMul(z, op.const(signs)), 1)


def weighted_mean(op: Builder, values: Sequence[ir.Value], weights: Any = None) -> ir.Value:
    """Return Σ wᵢ·vᵢ / Σ wᵢ."""
    shares = np.full(len(values), 1 / len(values)) if weights is None else np.asarray(weights) / np.sum(weights)
    total = op.Mul(values[0], op.like(float(shares[0]), values[0]))
    for value, share in zip(values[1:], shares[1:], strict=True):
        total = op.Add(total, op.Mul(value, op.like(float(share), value)))
    return total


def mean_of_members(
    op: Builder, estimator: Any, members: Sequence[tuple[str, Any]], xs: Any, dtype: Any, w: Any = None
) -> End:
    """The weighted mean of the members' predictions."""
    ends = []
    for i, (name, fitted) in enumerate(members):
        with member(op, name, "estimators_", i):
            ends.append(end_of(op, fitted, xs[i], dtype))
    mean = weighted_mean(op, [end.prediction for end in ends], w)
    if not hasattr(estimator, "classes_"):
        return End("regression", None, mean, objective=averaged("l2", missing=ALONE))
    if scored := [name for end, (name, _) in zip(ends, members, strict=True) if end.is_scores]:
        rule, fix = "A mean of members needs their probabilities.", "Choose members with predict_proba."
        raise ConvertError(rule, got=f"{scored[0]}, whose labels would be counted: a vote has no gradient", fix=fix)
    loss = "log" if len(estimator.classes_) == 2 else "cross_entropy"
    task: Task = "binary" if len(estimator.classes_) == 2 else "multiclass"
    weights = [None if end.objective is None else end.objective.class_weight for end in ends]
    shared = weights[0] if len({weight and weight.values for weight in weights}) == 1 else None
    return End(task, None, mean, objective=averaged(loss, missing=ALONE, class_weight=shared))


def voting(op: Builder, estimator: Any, x: Any, dtype: Any) -> End:
    """The weighted mean of the members' values or probabilities."""
    if getattr(estimator, "voting", "soft") == "hard":
        rule, fix = "A vote has no gradient.", "Set voting='soft'."
        raise ConvertError(rule, got="voting='hard'", fix=fix)
    names = [name for name, part in estimator.estimators if not isinstance(part, str)]  # 'drop'
    members = list(zip(names, estimator.estimators_, strict=True))
    weights = estimator.weights
    if weights is not None:
        weights = [w for w, (name, _) in zip(weights, estimator.estimators, strict=True) if name in names]
    return mean_of_members(op, estimator, members, [x] * len(members), dtype, weights)


def bagging(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """The mean of members that read some of the columns each."""
    members = [(f"member{i}", fitted) for i, fitted in enumerate(estimator.estimators_)]
    all_columns = np.arange(estimator.n_features_in_)
    xs = [
        x if np.array_equal(columns, all_columns) else op.Gather(x, op.const(np.asarray(columns, np.int64)), axis=1)
        for columns in estimator.estimators_features_
    ]
    return mean_of_members(op, estimator, members, xs, dtype)


def stacking(op: Builder, estimator: Any, x: Any, dtype: Any) -> End:
    """A last estimator that reads the members' predictions and, with `passthrough`, the features."""
    columns: list[ir.Value] = []
    names = [name for name, part in estimator.estimators if not isinstance(part, str)]
    methods = [method for method in estimator.stack_method_ if method is not None]
    for i, (name, fitted, method) in enumerate(zip(names, estimator.estimators_, methods, strict=True)):
        with member(op, name, "estimators_", i):
            end = end_of(op, fitted, x, dtype)
        columns.append(_member_column(op, end, name, method))
    if estimator.passthrough:
        columns.append(as_floats(x))
    features = op.Concat(*columns, axis=-1) if len(columns) > 1 else columns[0]
    with member(op, "final", "final_estimator_"):
        end = end_of(op, estimator.final_estimator_, features, dtype)
    objective = None if end.objective is None else end.objective.under("final.")
    return end._replace(objective=objective and dataclasses.replace(objective, missing=ALONE))


def _member_column(op: Builder, end: End, name: str, method: str) -> ir.Value:
    if method == "predict" and end.task != "regression":
        rule, fix = "A label has no gradient.", "Set stack_method to predict_proba or decision_function."
        raise ConvertError(rule, got=f"member {name!r}, whose labels the last estimator reads", fix=fix)
    if method == "predict_proba" and end.task == "binary":
        return op.Gather(end.prediction, op.const(np.array([1])), axis=1)
    if method == "decision_function" and end.task == "binary":
        return margin(op, end)
    return end.prediction if method != "decision_function" or end.logits is None else end.logits


def calibrated(op: Builder, estimator: Any, x: Any, dtype: Any) -> End:
    """The mean of σ(−(a·z + b)) over calibrated classifiers; for several classes scaled to sum 1."""
    parts = []
    for i, part in enumerate(estimator.calibrated_classifiers_):
        with member(op, f"fold{i}", "calibrated_classifiers_", i):
            parts.append(_calibrated_part(op, part, x, dtype))
    p = parts[0].prediction if len(parts) == 1 else weighted_mean(op, [part.prediction for part in parts])
    end = parts[0] if len(parts) == 1 else End(parts[0].task, None, p)
    lacking = "separate fits of its calibrators on other rows (training updates all together)"
    loss = "log" if end.task == "binary" else "cross_entropy"
    return end._replace(objective=averaged(loss, missing=lacking), ranking=p)


def _calibrated_part(op: Builder, part: Any, x: Any, dtype: Any) -> End:
    """Return the end of one classifier with its calibrators."""
    with within(op.graph, "estimator"):
        end = end_of(op, part.estimator, x, dtype)
    count = len(part.classes)
    if part.method == "sigmoid" and len(part.estimator.classes_) == count:
        return _platt(op, part, _uncalibrated(op, part.estimator, end), count, dtype)
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


def _uncalibrated(op: Builder, estimator: Any, end: End) -> ir.Value:
    """Return the input of the calibrators: decision_function if the classifier has one, else probabilities."""
    scores = end.logits if end.ranking is None else end.ranking
    if hasattr(estimator, "decision_function") and scores is not None:
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
