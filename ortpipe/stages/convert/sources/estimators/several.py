"""Estimators that fit one member for each class, pair of classes or label, side by side or in a chain."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder
from ortpipe.stages.convert.objective import Objective, Strengths
from ortpipe.stages.convert.sources.estimators import class_path, end_of
from ortpipe.stages.convert.sources.estimators.end import End, member, scores_end
from ortpipe.stages.convert.sources.estimators.linear_classifiers import one_vs_rest as normalized
from ortpipe.stages.convert.sources.estimators.meta import ALONE, margin

REMAINDER = "scores are counted votes of pairs and a bounded remainder: gradients pass through the remainder alone"


def _members(
    op: Builder,
    estimator: Any,
    x: ir.Value,
    dtype: Any,
    names: Sequence[str],
    chained: Callable[[End], ir.Value] | None = None,
) -> list[End]:
    """Return the members' ends; with `chained`, each member also reads that value of earlier members."""
    ends: list[End] = []
    for i, (name, fitted) in enumerate(zip(names, estimator.estimators_, strict=True)):
        if class_path(fitted).endswith("._ConstantPredictor"):
            rule, fix = "Every class must occur in the rows for fitting.", "Leave out that class or label."
            raise ConvertError(rule, got=f"{name}, which all rows have or none has", fix=fix)
        with member(op, name, "estimators_", i):
            ends.append(end_of(op, fitted, x, dtype))
        if chained is not None:
            x = op.Concat(x, chained(ends[-1]), axis=-1)
    return ends


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
    ends = _members(op, estimator, x, dtype, names)
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
    ends = _members(op, estimator, x, dtype, names)
    z = op.Concat(*(margin(op, end) for end in ends), axis=-1) if len(ends) > 1 else margin(op, ends[0])
    confidences = z if hasattr(estimator.estimators_[0], "decision_function") else op.Sigmoid(z)
    scores, _ = per_class(op, confidences, op.Greater(z, op.like(0, z)), count)
    if count == 2:
        return scores_end(op, op.Gather(scores, op.const(np.array([1])), axis=1), labels)._replace(ranking=z)
    return scores_end(op, scores, labels)._replace(notes=(REMAINDER,))


def multi_output_classifier(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """One member of two classes 0 and 1 for each label."""
    names = [f"output{i}" for i in range(len(estimator.estimators_))]
    _check_labels([fitted.classes_ for fitted in estimator.estimators_])
    ends = _members(op, estimator, x, dtype, names)
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
    ends = _members(op, estimator, x, dtype, names, None if order is None else lambda end: end.prediction)
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
        return op.cast(op.Greater(z, op.like(0, z)), z) if method == "predict" else value

    names = [f"label{int(i)}" for i in estimator.order_]
    ends = _members(op, estimator, x, dtype, names, chained)
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
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    signs = np.zeros((len(pairs), count))
    for p, (i, j) in enumerate(pairs):
        signs[p, i], signs[p, j] = -1, 1
    dtype = second.dtype.numpy() if second.dtype is not None else np.float32
    total = op.MatMul(second, op.const(signs.astype(dtype)))
    is_second = op.cast(chosen, second)
    # is_second is the second class's vote; the first gets 1 − that
    votes = op.Add(op.MatMul(is_second, op.const(signs.astype(dtype))), op.const((signs < 0).sum(axis=0).astype(dtype)))
    return op.Add(votes, op.Div(total, op.Mul(op.Add(op.Abs(total), 1), 3))), votes
