"""Estimators that fit one member for each class, pair of classes or label, side by side or in a chain."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder
from ortpipe.stages.convert.sources.estimators import class_path, end_of
from ortpipe.stages.convert.sources.estimators.attributes import member
from ortpipe.stages.convert.sources.estimators.end import End, scores_end
from ortpipe.stages.convert.sources.estimators.linear_classifiers import one_vs_rest as normalized
from ortpipe.stages.convert.sources.estimators.meta import ALONE, margin
from ortpipe.stages.convert.sources.estimators.objective import Objective, Strengths
from ortpipe.stages.convert.sources.estimators.pairs import REMAINDER, per_class


def _members(op: Builder, estimator: Any, x: ir.Value, dtype: Any, names: Sequence[str]) -> list[End]:
    ends = []
    for i, (name, fitted) in enumerate(zip(names, estimator.estimators_, strict=True)):
        if class_path(fitted).endswith("._ConstantPredictor"):
            rule, fix = "Every class must occur in the rows for fitting.", "Leave out that class or label."
            raise ConvertError(rule, got=f"{name}, which all rows have or none has", fix=fix)
        with member(op, name, "estimators_", i):
            ends.append(end_of(op, fitted, x, dtype))
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


def multi_output_regressor(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """One member for each column of y."""
    names = [f"output{i}" for i in range(len(estimator.estimators_))]
    ends = _members(op, estimator, x, dtype, names)
    value = op.Concat(*(end.prediction for end in ends), axis=-1)
    return End("regression", None, value, objective=sum_of_objectives(ends, names))


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


def classifier_chain(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """One member for each label, which reads the predictions of those before it."""
    _check_labels(estimator.classes_)
    method = estimator.chain_method_
    columns: list[ir.Value] = []
    ends = []
    for i, fitted in enumerate(estimator.estimators_):
        with member(op, f"label{int(estimator.order_[i])}", "estimators_", i):
            ends.append(end_of(op, fitted, x, dtype))
        z = margin(op, ends[-1])
        columns.append(z)
        chained_value = z if method == "decision_function" else op.Sigmoid(z)
        if method == "predict":
            chained_value = op.cast(op.Greater(z, op.like(0, z)), z)
        x = op.Concat(x, chained_value, axis=-1)
    z = op.Concat(*(columns[i] for i in np.argsort(estimator.order_)), axis=-1)
    names = [f"label{int(i)}" for i in estimator.order_]
    note = ("members read the labels of those before them, and a label has no gradient",) if method == "predict" else ()
    prediction = z if ends[0].is_scores else op.Sigmoid(z)
    return End("multilabel", z, prediction, objective=_without_independence(sum_of_objectives(ends, names)), notes=note)


def regressor_chain(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """One member for each column of y, which reads the predictions of those before it."""
    ends = []
    for i, fitted in enumerate(estimator.estimators_):
        with member(op, f"output{int(estimator.order_[i])}", "estimators_", i):
            ends.append(end_of(op, fitted, x, dtype))
        x = op.Concat(x, ends[-1].prediction, axis=-1)
    value = op.Concat(*(ends[i].prediction for i in np.argsort(estimator.order_)), axis=-1)
    names = [f"output{int(i)}" for i in estimator.order_]
    return End("regression", None, value, objective=_without_independence(sum_of_objectives(ends, names)))


def _without_independence(objective: Objective | None) -> Objective | None:
    """Note in the objective that gradients of later members move those before them."""
    return objective and dataclasses.replace(objective, missing=ALONE)
