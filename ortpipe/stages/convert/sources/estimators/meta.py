"""Meta-estimators: an inner estimator, several joined, or one for each class, pair of classes or label."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Task
from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.origins import within
from ortpipe.stages.convert.dialects.kernels import signs_of_pairs, votes_of_pairs
from ortpipe.stages.convert.objective import Objective, Strengths, averaged
from ortpipe.stages.convert.sources.estimators import class_path, end_of
from ortpipe.stages.convert.sources.estimators.end import (
    End,
    log_sigmoid,
    member,
    parameter,
    scores_end,
    sigmoid_end,
    softmax_end,
)
from ortpipe.stages.convert.sources.estimators.linear_classifiers import one_vs_rest as normalized
from ortpipe.stages.convert.sources.outputs import with_width
from ortpipe.stages.convert.sources.sklearn_columns import as_floats

REMAINDER = "scores are counted votes of pairs and a bounded remainder: gradients pass through the remainder alone"
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
    score = column_of(op, end.prediction, max(sign, 0)) if by_probability else margin(op, end) * sign
    return end._replace(ranking=with_width((score - float(limit)) * sign, 1))


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
    return with_width(op.MatMul(z, op.like([[-1.0], [1.0]], z)), 1)


def column_of(op: Builder, values: ir.Value, place: int) -> ir.Value:
    """Return a column of values [N, K], [N, 1]."""
    return op.Gather(values, [place], axis=1)


def weighted_mean(op: Builder, values: Sequence[ir.Value], weights: Any = None) -> ir.Value:
    """Return Σ wᵢ·vᵢ / Σ wᵢ."""
    shares = np.full(len(values), 1 / len(values)) if weights is None else np.asarray(weights) / np.sum(weights)
    return functools.reduce(op.Add, (value * float(share) for value, share in zip(values, shares, strict=True)))


def members_of(
    op: Builder,
    estimator: Any,
    x: Any,
    dtype: Any,
    names: Sequence[str],
    chained: Callable[[End], ir.Value] | None = None,
) -> list[End]:
    """Return the members' ends, behind x or, of a list, behind its entries; with `chained`, also behind that value of
    earlier members.
    """
    ends: list[End] = []
    for i, (name, fitted) in enumerate(zip(names, estimator.estimators_, strict=True)):
        if class_path(fitted).endswith("._ConstantPredictor"):
            rule, fix = "Every class must occur in the rows for fitting.", "Leave out that class or label."
            raise ConvertError(rule, got=f"{name}, which all rows have or none has", fix=fix)
        with member(op, name, "estimators_", i):
            ends.append(end_of(op, fitted, x[i] if isinstance(x, list) else x, dtype))
        if chained is not None:
            x = op.Concat(x, chained(ends[-1]), axis=-1)
    return ends


def mean_of_members(op: Builder, estimator: Any, x: Any, dtype: Any, names: Sequence[str], weights: Any = None) -> End:
    """The weighted mean of the members' predictions."""
    ends = members_of(op, estimator, x, dtype, names)
    mean = weighted_mean(op, [end.prediction for end in ends], weights)
    if not hasattr(estimator, "classes_"):
        return End("regression", None, mean, objective=averaged("l2", missing=ALONE))
    if scored := [name for end, name in zip(ends, names, strict=True) if end.is_scores]:
        rule, fix = "A mean of members needs their probabilities.", "Choose members with predict_proba."
        raise ConvertError(rule, got=f"{scored[0]}, whose labels would be counted: a vote has no gradient", fix=fix)
    loss = "log" if len(estimator.classes_) == 2 else "cross_entropy"
    task: Task = "binary" if len(estimator.classes_) == 2 else "multiclass"
    of_classes = [None if end.objective is None else end.objective.class_weight for end in ends]
    shared = of_classes[0] if len({weight and weight.values for weight in of_classes}) == 1 else None
    return End(task, None, mean, objective=averaged(loss, missing=ALONE, class_weight=shared))


def voting(op: Builder, estimator: Any, x: Any, dtype: Any) -> End:
    """The weighted mean of the members' values or probabilities."""
    if getattr(estimator, "voting", "soft") == "hard":
        rule, fix = "A vote has no gradient.", "Set voting='soft'."
        raise ConvertError(rule, got="voting='hard'", fix=fix)
    weights, names = estimator.weights, names_of(estimator)
    if weights is not None:
        weights = [w for w, (name, _) in zip(weights, estimator.estimators, strict=True) if name in names]
    return mean_of_members(op, estimator, x, dtype, names, weights)


def names_of(estimator: Any) -> list[str]:
    """Return the names of the fitted members."""
    return [name for name, part in estimator.estimators if not isinstance(part, str)]  # 'drop'


def bagging(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """The mean of members that read some of the columns each."""
    all_columns = np.arange(estimator.n_features_in_)
    xs = [
        x if np.array_equal(columns, all_columns) else op.Gather(x, op.const(np.asarray(columns, np.int64)), axis=1)
        for columns in estimator.estimators_features_
    ]
    return mean_of_members(op, estimator, xs, dtype, [f"member{i}" for i in range(len(xs))])


def stacking(op: Builder, estimator: Any, x: Any, dtype: Any) -> End:
    """A last estimator that reads the members' predictions and, with `passthrough`, the features."""
    names, methods = names_of(estimator), [method for method in estimator.stack_method_ if method is not None]
    ends = members_of(op, estimator, x, dtype, names)
    columns = [_member_column(op, *each) for each in zip(ends, names, methods, strict=True)]
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
        return column_of(op, end.prediction, 1)
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
        z = end.logits * inverse
        if count == 2:  # softmax(β·[−z, z])
            return sigmoid_end(op, z * 2)
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
        return column_of(op, end.prediction, 1)
    return end.prediction


def _platt(op: Builder, part: Any, scores: ir.Value, count: int, dtype: Any) -> End:
    """σ(−(a·z + b)): of one column the second class's p; several are scaled to sum 1."""
    columns = []
    for k, calibrator in enumerate(part.calibrators):
        with member(op, f"calibrator{k}", "calibrators", k):
            a = parameter(op, calibrator, "a", "a_", ["reshape", 1], dtype=dtype)
            b = parameter(op, calibrator, "b", "b_", ["reshape", 1], dtype=dtype)
        column = scores if count == 2 else column_of(op, scores, k)
        columns.append(-(column * a + b))
    if count == 2:
        return sigmoid_end(op, columns[0])
    return softmax_end(op, log_sigmoid(op, op.Concat(*columns, axis=-1)), part.classes)


def sum_of_objectives(ends: Sequence[End], names: Sequence[str], wrap: str | None = None) -> Objective | None:
    """Return the sum of the members' objectives if they have the same loss; `wrap` names a loss around it.

    The members are copies of one estimator, with its class weights for classes 0 and 1.
    """
    objectives = [end.objective for end in ends]
    first = objectives[0]
    if first is None or any(o is None or (o.loss, o.reduction) != (first.loss, first.reduction) for o in objectives):
        return None
    terms: dict[str, Strengths] = {}
    for name, objective in zip(names, objectives, strict=True):
        terms.update(objective.under(f"{name}.").penalty if objective is not None else {})
    loss = first.loss if wrap is None else {"name": wrap, "loss": first.loss["name"]}
    weights = first.class_weight and dataclasses.replace(first.class_weight, of="members")
    return dataclasses.replace(first, loss=loss, penalty=terms, class_weight=weights)


def one_vs_rest(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """Each class against the rest; p = σ(z) scaled to sum 1, or σ(z) for several labels."""
    labels = [str(label) for label in np.asarray(estimator.classes_).tolist()]
    names = labels if len(estimator.estimators_) > 1 else labels[-1:]
    ends = members_of(op, estimator, x, dtype, names)
    if len(ends) == 1:
        return ends[0]._replace(objective=ends[0].objective and ends[0].objective.under(f"{names[0]}."))
    z = op.Concat(*(margin(op, end) for end in ends), axis=-1)
    are_scores = ends[0].is_scores
    if estimator.multilabel_:
        return End("multilabel", z, z if are_scores else op.Sigmoid(z), objective=sum_of_objectives(ends, names))
    objective = sum_of_objectives(ends, names, "one_vs_rest")
    return scores_end(op, z, estimator.classes_, objective) if are_scores else normalized(op, z, objective)


def one_vs_one(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """Each pair of classes; a class's score is its votes and, below ⅓, the sum of its scores."""
    if estimator.pairwise_indices_ is not None:
        raise ConvertError("Kernels must be of rows.", got="a precomputed kernel", fix="Choose another kernel.")
    labels = np.asarray(estimator.classes_).tolist()
    count = len(labels)
    names = [f"{labels[i]}_{labels[j]}" for i in range(count) for j in range(i + 1, count)]
    ends = members_of(op, estimator, x, dtype, names)
    z = op.Concat(*(margin(op, end) for end in ends), axis=-1) if len(ends) > 1 else margin(op, ends[0])
    confidences = z if hasattr(estimator.estimators_[0], "decision_function") else op.Sigmoid(z)
    scores, _ = per_class(op, confidences, op.Greater(z, 0), count)
    if count == 2:
        return scores_end(op, column_of(op, scores, 1), labels)._replace(ranking=z)
    return scores_end(op, scores, labels)._replace(notes=(REMAINDER,))


def multi_output_classifier(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """One member of two classes 0 and 1 for each label."""
    names = [f"output{i}" for i in range(len(estimator.estimators_))]
    _check_labels([fitted.classes_ for fitted in estimator.estimators_])
    ends = members_of(op, estimator, x, dtype, names)
    z = op.Concat(*(margin(op, end) for end in ends), axis=-1)
    if ends[0].is_scores:
        rule, fix = "Several outputs need their probabilities.", "Choose a member with predict_proba."
        raise ConvertError(rule, got=type(estimator.estimators_[0]).__name__, fix=fix)
    return End("multilabel", z, op.Sigmoid(z), objective=sum_of_objectives(ends, names))


def _check_labels(classes: Sequence[Any]) -> None:
    for labels in classes:
        if not np.array_equal(labels, [0, 1]):
            raise ConvertError(
                "Several outputs must be labels 0 or 1 each.",
                got=f"classes {np.asarray(labels).tolist()[:5]}",
                fix="Convert each output's member on its own.",
            )


def regressors(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """One member for each column of y; in a chain, it also reads the predictions of earlier members."""
    order = getattr(estimator, "order_", None)
    places = range(len(estimator.estimators_)) if order is None else [int(i) for i in order]
    names = [f"output{i}" for i in places]
    ends = members_of(op, estimator, x, dtype, names, None if order is None else lambda end: end.prediction)
    value = op.Concat(*(ends[i].prediction for i in np.argsort(places)), axis=-1)
    objective = sum_of_objectives(ends, names)
    return End("regression", None, value, objective=objective if order is None else _together(objective))


def classifier_chain(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """One member for each label, which reads the predictions of the previous members."""
    _check_labels(estimator.classes_)
    method = estimator.chain_method_
    columns: list[ir.Value] = []

    def chained(end: End) -> ir.Value:
        z = margin(op, end)
        columns.append(z)
        value = z if method == "decision_function" else op.Sigmoid(z)
        return op.cast(op.Greater(z, 0), z) if method == "predict" else value

    names = [f"label{int(i)}" for i in estimator.order_]
    ends = members_of(op, estimator, x, dtype, names, chained)
    z = op.Concat(*(columns[i] for i in np.argsort(estimator.order_)), axis=-1)
    note = ("members read the labels of those before them, and a label has no gradient",) if method == "predict" else ()
    prediction = z if ends[0].is_scores else op.Sigmoid(z)
    return End("multilabel", z, prediction, objective=_together(sum_of_objectives(ends, names)), notes=note)


def _together(objective: Objective | None) -> Objective | None:
    """Note in the objective that gradients of later members move those before them."""
    return objective and dataclasses.replace(objective, missing=ALONE)


def per_class(op: Builder, second: ir.Value, chosen: ir.Value, count: int) -> tuple[ir.Value, ir.Value]:
    """Return votes + s/(3·(|s| + 1)) of sums s of confidences, [N, classes], and the votes.

    These are the scores of scikit-learn's `_ovr_decision_function`.
    `second` [N, pairs] is the confidence in a pair's second class, `chosen` whether the pair votes for it.
    """
    total = op.MatMul(second, op.like(signs_of_pairs(count), second))
    votes = votes_of_pairs(op, op.cast(chosen, second), count)
    return votes + total / ((op.Abs(total) + 1) * 3), votes
