"""Kernel machines: support vectors or training rows, and a coefficient for each."""

from typing import Any

import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder
from ortpipe.stages.convert.dialects.kernels import KERNELS, couple, kernel, scores_of_pairs
from ortpipe.stages.convert.objective import ClassWeight, class_weight, summed
from ortpipe.stages.convert.sources.estimators.end import (
    End,
    Step,
    array_of,
    parameter,
    scores_end,
    sigmoid_end,
    softmax_end,
)
from ortpipe.stages.convert.sources.estimators.meta import REMAINDER, per_class
from ortpipe.stages.convert.sources.outputs import with_width

NORM = "½·‖w‖² in the kernel's feature space, which is not a penalty on one parameter"
BEFORE_PLATT = "its hinge loss, followed by Platt's log loss on other folds"
OF_PAIRS = (
    "libsvm's hinge loss per pair of classes, which the scores of classes no longer contain (the loss hinge compares "
    "the true class with the runner-up)"
)

TRANSPOSE: Step = ("transpose",)
ITERATED = 5e-3  # tolerance of the iteration by which libsvm computes two probabilities


def products(op: Builder, estimator: Any, x: ir.Value, vectors: ir.Value, gamma: float) -> ir.Value:
    """Return the kernel of rows and vectors, [N, vectors]."""
    if estimator.kernel not in KERNELS:
        raise ConvertError(
            "A kernel must be linear, poly, rbf or sigmoid.",
            got=f"kernel={estimator.kernel!r} of {type(estimator).__name__}",
            fix="Fit the estimator with one of these.",
        )
    return kernel(op, estimator.kernel, x, vectors, gamma, float(estimator.coef0), float(estimator.degree))


def _machine(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> ir.Value:
    vectors = parameter(op, estimator, "support_vectors", "support_vectors_", dtype=dtype)
    gamma = float(vars(estimator)["_gamma"])  # what fit computed; `gamma` may be "scale", of the training rows
    return products(op, estimator, x, vectors, gamma)


def _sum(op: Builder, estimator: Any, values: ir.Value, dtype: Any, *copied: Step) -> ir.Value:
    """Σ dual_coefficient · value + intercept; the estimator holds copies of both, after these steps."""
    copies = [("_dual_coef_", [*copied, TRANSPOSE])]
    dual = parameter(op, estimator, "dual_coefficient", "dual_coef_", TRANSPOSE, dtype=dtype, also=copies)
    copies = [("_intercept_", [*copied])]
    return op.Gemm(values, dual, parameter(op, estimator, "intercept", "intercept_", dtype=dtype, also=copies))


def svr(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """Σ dual_coefficient · K(x, support vector) + intercept."""
    z = _sum(op, estimator, _machine(op, estimator, x, dtype), dtype)
    epsilon = float(estimator.epsilon) if type(estimator).__name__ == "SVR" else 0.0
    lacking = NORM if epsilon or type(estimator).__name__ == "SVR" else f"{NORM}; nu, which determines epsilon"
    loss = {"name": "epsilon_insensitive", "epsilon": epsilon}
    return End("regression", None, z, objective=summed(loss, missing=lacking))


def svc(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """z = Σ dual_coefficient · K(x, support vector) + intercept, and with probability=True Platt's σ(B − A·z)."""
    values = _machine(op, estimator, x, dtype)
    weights = class_weight(estimator) if type(estimator).__name__ == "SVC" else None  # NuSVC ignores its own
    if len(estimator.classes_) > 2:
        return _several(op, estimator, values, dtype, weights)
    z = with_width(_sum(op, estimator, values, dtype, ["scale", -1.0]), 1)
    if getattr(estimator, "probability", False) is not True:
        objective = summed("hinge", missing=NORM, class_weight=weights)
        return scores_end(op, z, estimator.classes_, objective)
    slope = parameter(op, estimator, "platt_a", "_probA", dtype=dtype)
    bias = parameter(op, estimator, "platt_b", "_probB", dtype=dtype)
    objective = summed("log", missing=BEFORE_PLATT)
    end = sigmoid_end(op, bias - z * slope, objective)
    return end._replace(ranking=z, rounding=ITERATED)


def _several(op: Builder, estimator: Any, values: ir.Value, dtype: Any, weights: ClassWeight | None) -> End:
    """One machine for each pair of classes; a class's score is its votes and, below ⅓, the sum of its scores.

    With probability=True the machines' Platt probabilities are coupled.
    """
    if estimator.decision_function_shape != "ovr":
        rule, fix = "A score of each class is needed.", "Set decision_function_shape='ovr'; predict stays the same."
        raise ConvertError(rule, got="decision_function_shape='ovo'", fix=fix)
    count = len(estimator.classes_)
    dual = parameter(op, estimator, "dual_coefficient", "dual_coef_", dtype=dtype, also=[("_dual_coef_", [])])
    intercept = parameter(op, estimator, "intercept", "intercept_", dtype=dtype, also=[("_intercept_", [])])
    pair_scores = scores_of_pairs(op, values, dual, intercept, array_of(estimator, "n_support_"))
    scores, votes = per_class(op, -pair_scores, op.Less(pair_scores, 0), count)
    ranking = scores if estimator.break_ties else votes
    if getattr(estimator, "probability", False) is not True:
        objective = summed("cross_entropy", missing=OF_PAIRS, class_weight=weights)
        return scores_end(op, scores, estimator.classes_, objective)._replace(ranking=ranking, notes=(REMAINDER,))
    slope = parameter(op, estimator, "platt_a", "_probA", dtype=dtype)
    bias = parameter(op, estimator, "platt_b", "_probB", dtype=dtype)
    first_probability = op.Sigmoid(-(pair_scores * slope + bias))
    objective = summed("cross_entropy", missing=BEFORE_PLATT)
    end = softmax_end(op, couple(op, first_probability, count), estimator.classes_, objective)
    return end._replace(ranking=ranking, rounding=ITERATED)


def kernel_ridge(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """Σ dual_coefficient · K(x, training row)."""
    training_rows = parameter(op, estimator, "training_rows", "X_fit_", dtype=dtype)
    gamma = 1 / estimator.n_features_in_ if estimator.gamma is None else float(estimator.gamma)
    values = products(op, estimator, x, training_rows, gamma)
    rank = array_of(estimator, "dual_coef_").ndim
    steps = [] if rank == 2 else [["reshape", -1, 1]]
    dual = parameter(op, estimator, "dual_coefficient", "dual_coef_", *steps, dtype=dtype)
    lacking = "alpha·‖w‖² in the kernel's feature space, which is not a penalty on one parameter"
    return End("regression", None, op.MatMul(values, dual), objective=summed("l2", missing=lacking))
