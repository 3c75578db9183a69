"""Kernel machines: what they kept of the training rows, and a coefficient for each."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph.builder import Builder
from ortpipe.stages.convert.coupling import couple
from ortpipe.stages.convert.sources.estimators.attributes import Step, array_of, const, parameter
from ortpipe.stages.convert.sources.estimators.end import End, scores_end, shaped, sigmoid_end, softmax_end
from ortpipe.stages.convert.sources.estimators.objective import missing, summed
from ortpipe.stages.convert.sources.estimators.pairs import REMAINDER, per_class

NORM = "½·‖w‖² of the kernel's space, which is no penalty of one parameter"
BEFORE_PLATT = "its hinge loss, and Platt's log loss of other folds after it"
BY_TASK = (
    "libsvm's objective is a hinge loss of each pair of classes, which the scores of classes no longer hold: the loss "
    "is that of the task, or add_loss=hinge, which compares the true class with the next"
)

TURNED: Step = ("transpose",)
ITERATED = 5e-3  # libsvm finds two probabilities by an iteration that ends there


def products(op: Builder, estimator: Any, x: ir.Value, kept: ir.Value, gamma: float, dtype: Any) -> ir.Value:
    """Return the kernel of rows and those that are kept, [N, kept]."""
    degree, shift = float(estimator.degree), float(estimator.coef0)
    match estimator.kernel:
        case "linear":
            return op.Gemm(x, kept, transB=1)
        case "rbf":
            # distances are those of centred rows, whose squares are smaller: fewer digits cancel
            centre = const(op, np.mean(kept.const_value.numpy(), axis=0), dtype)  # type: ignore[union-attr]
            return op.Exp(op.Mul(squared_distances(op, op.Sub(x, centre), op.Sub(kept, centre)), -gamma))
        case "poly" | "polynomial" | "sigmoid" as kind:
            inner = op.Add(op.Mul(op.Gemm(x, kept, transB=1), gamma), shift)
            return op.Tanh(inner) if kind == "sigmoid" else op.Pow(inner, op.like(degree, inner))
    raise ConvertError(
        "A kernel must be linear, poly, rbf or sigmoid.",
        got=f"kernel={estimator.kernel!r} of {type(estimator).__name__}",
        fix="Fit the estimator with one of these.",
    )


def squared_distances(op: Builder, x: ir.Value, kept: ir.Value) -> ir.Value:
    """‖x‖² − 2·x · kept + ‖kept‖², [N, kept], not below 0."""
    rows = op.ReduceSum(op.Mul(x, x), [-1], keepdims=1)
    columns = op.Transpose(op.ReduceSum(op.Mul(kept, kept), [-1], keepdims=1), perm=[1, 0])
    product = op.Gemm(x, kept, transB=1)
    return op.Relu(op.Add(op.Sub(rows, op.Mul(product, 2)), columns))


def _machine(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> ir.Value:
    kept = parameter(op, estimator, "support_vectors", "support_vectors_", dtype=dtype)
    return products(op, estimator, x, kept, float(estimator._gamma), dtype)


def svr(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """Σ dual_coefficient · K(x, support vector) + intercept."""
    kernel = _machine(op, estimator, x, dtype)
    same = [("_dual_coef_", [TURNED])]
    dual = parameter(op, estimator, "dual_coefficient", "dual_coef_", TURNED, dtype=dtype, also=same)
    intercept = parameter(op, estimator, "intercept", "intercept_", dtype=dtype, also=[("_intercept_", [])])
    epsilon = float(estimator.epsilon) if type(estimator).__name__ == "SVR" else 0.0
    lacking = NORM if epsilon or type(estimator).__name__ == "SVR" else f"{NORM}; nu, which finds epsilon"
    loss = {"name": "epsilon_insensitive", "epsilon": epsilon}
    return End("regression", None, op.Gemm(kernel, dual, intercept), objective=summed(loss, missing=lacking))


def svc(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """z = Σ dual_coefficient · K(x, support vector) + intercept, and with probability=True Platt's σ(B − A·z)."""
    kernel = _machine(op, estimator, x, dtype)
    if len(estimator.classes_) > 2:
        return _several(op, estimator, kernel, dtype)
    other = [("_dual_coef_", [["scale", -1.0], TURNED])]
    dual = parameter(op, estimator, "dual_coefficient", "dual_coef_", TURNED, dtype=dtype, also=other)
    negative = [("_intercept_", [["scale", -1.0]])]
    intercept = parameter(op, estimator, "intercept", "intercept_", dtype=dtype, also=negative)
    z = shaped(op.Gemm(kernel, dual, intercept), 1)
    if getattr(estimator, "probability", False) is not True:
        return scores_end(op, z, estimator.classes_, summed("hinge", missing=missing(estimator, NORM)))
    slope = parameter(op, estimator, "platt_a", "_probA", dtype=dtype)
    bias = parameter(op, estimator, "platt_b", "_probB", dtype=dtype)
    objective = summed("log", missing=missing(estimator, BEFORE_PLATT))
    end = sigmoid_end(op, op.Sub(bias, op.Mul(z, slope)), objective)
    return end._replace(ranking=z, rounding=ITERATED)


def _several(op: Builder, estimator: Any, kernel: ir.Value, dtype: Any) -> End:
    """Of each pair of classes a machine; a class's score is its votes and, below ⅓, the sum of its scores.

    With probability=True Platt's σ of each machine, couple.
    """
    if estimator.decision_function_shape != "ovr":
        rule, fix = "A score of each class is needed.", "Set decision_function_shape='ovr'; predict stays the same."
        raise ConvertError(rule, got="decision_function_shape='ovo'", fix=fix)
    count, sizes = len(estimator.classes_), array_of(estimator, "n_support_")
    owner = np.repeat(np.arange(count), sizes)  # class of each support vector
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    row = np.stack([np.where(owner == i, j - 1, i) for i, j in pairs]).astype(np.int64)
    mine = np.stack([(owner == i) | (owner == j) for i, j in pairs])
    dual = parameter(op, estimator, "dual_coefficient", "dual_coef_", dtype=dtype, also=[("_dual_coef_", [])])
    weight = op.Mul(op.GatherElements(dual, op.const(row), axis=0), const(op, mine, dtype))  # [pairs, kept]
    intercept = parameter(op, estimator, "intercept", "intercept_", dtype=dtype, also=[("_intercept_", [])])
    first = op.Gemm(kernel, weight, intercept, transB=1)  # > 0: the first of the pair
    scores, votes = per_class(op, op.Neg(first), op.Less(first, op.like(0, first)), count)
    ranking = scores if estimator.break_ties else votes
    if getattr(estimator, "probability", False) is not True:
        return scores_end(op, scores, estimator.classes_)._replace(ranking=ranking, notes=(REMAINDER, BY_TASK))
    slope = parameter(op, estimator, "platt_a", "_probA", dtype=dtype)
    bias = parameter(op, estimator, "platt_b", "_probB", dtype=dtype)
    of_first = op.Sigmoid(op.Neg(op.Add(op.Mul(first, slope), bias)))
    objective = summed("cross_entropy", missing=missing(estimator, BEFORE_PLATT))
    end = softmax_end(op, couple(op, of_first, count), estimator.classes_, objective)
    return end._replace(ranking=ranking, rounding=ITERATED)


def kernel_ridge(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """Σ dual_coefficient · K(x, training row)."""
    kept = parameter(op, estimator, "training_rows", "X_fit_", dtype=dtype)
    gamma = 1 / estimator.n_features_in_ if estimator.gamma is None else float(estimator.gamma)
    kernel = products(op, estimator, x, kept, gamma, dtype)
    rank = array_of(estimator, "dual_coef_").ndim
    steps = [] if rank == 2 else [["reshape", -1, 1]]
    dual = parameter(op, estimator, "dual_coefficient", "dual_coef_", *steps, dtype=dtype)
    lacking = "alpha·‖w‖² of the kernel's space, which is no penalty of one parameter"
    return End("regression", None, op.MatMul(kernel, dual), objective=summed("l2", missing=lacking))
