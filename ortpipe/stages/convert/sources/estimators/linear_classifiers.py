"""Linear classifiers: probabilities if scikit-learn gives them, else raw scores."""

import warnings
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core.builder import Builder
from ortpipe.stages.convert.objective import ClassWeight, Objective, averaged, class_weight, summed
from ortpipe.stages.convert.sources.estimators.end import End, log_sigmoid, scores_end, sigmoid_end, softmax_end
from ortpipe.stages.convert.sources.estimators.linear import regressor, ridge_objective, scores, sgd_penalty

SCORES = {  # SGDClassifier's losses of scores, by ortpipe's names, and its factor
    "hinge": ("hinge", 1.0),
    "log_loss": ("log", 1.0),
    "modified_huber": ("modified_huber", 1.0),
    "squared_hinge": ("squared_hinge", 1.0),
    "perceptron": ("perceptron", 1.0),
    "squared_error": ("squared_margin", 2.0),
}


def of_classes(estimator: Any, loss: str) -> dict[str, Any]:
    """Return a loss of two classes, or its sum over each class against the rest."""
    return {"name": loss} if len(estimator.classes_) == 2 else {"name": "one_vs_rest", "loss": loss}


def weights_of_scores(estimator: Any, *, counts_weights: bool = False) -> ClassWeight | None:
    """Return class weights where several classes have a score each: they weigh a class's rows against the rest."""
    of: Any = "rows" if len(estimator.classes_) == 2 else "positives"
    return class_weight(estimator, of, counts_weights=counts_weights)


def one_vs_rest(op: Builder, z: ir.Value, objective: Objective | None) -> End:
    """σ(z) of each class, scaled to sum 1, which is softmax(log σ(z))."""
    logits = log_sigmoid(op, z)
    # σ(z) of two classes may both round to 1, z does not
    return End("multiclass", logits, op.Softmax(logits, axis=-1), z, objective)


def logistic(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """C·Σ log loss + (1 − ρ)·½·‖w‖² + ρ·‖w‖₁; two classes: p = σ(z), more: softmax(z)."""
    z = scores(op, estimator, x, dtype)
    objective = logistic_objective(estimator)
    if len(estimator.classes_) == 2:
        return sigmoid_end(op, z, objective)
    if getattr(estimator, "multi_class", None) == "ovr" or estimator.solver == "liblinear":
        return one_vs_rest(op, z, None)
    return softmax_end(op, z, estimator.classes_, objective)._replace(ranking=z)


def logistic_objective(estimator: Any) -> Objective:
    """Return the objective divided by C."""
    loss = "log" if len(estimator.classes_) == 2 else "cross_entropy"
    strengths = np.ravel(getattr(estimator, "C_", estimator.C if hasattr(estimator, "C") else 1.0))
    if np.unique(strengths).size > 1:
        lacking = "its C_, one value per class"
        return summed(loss, missing=lacking, class_weight=class_weight(estimator, counts_weights=True))
    kind = getattr(estimator, "penalty", "l2")
    share = getattr(estimator, "l1_ratio_", getattr(estimator, "l1_ratio", None))
    share = float(np.ravel(0.0 if share is None else share)[0] or 0.0)
    share = {"l1": 1.0, "l2": 0.0}.get(kind, share)
    inverse = 0.0 if kind in (None, "none") else 1 / float(strengths[0])
    terms = {"l1": share * inverse, "l2": (1 - share) * inverse / 2}
    penalty = _with_intercept(estimator, terms) if estimator.solver == "liblinear" else {"coefficient": terms}
    return summed(loss, penalty, class_weight=class_weight(estimator, counts_weights=True))


def sgd(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """1/N·Σ l + α·R(w), of one class against the rest where there are more than two; also a Perceptron's."""
    z = scores(op, estimator, x, dtype)
    objective = None
    if estimator.loss in SCORES:  # its other losses are of values
        loss, factor = SCORES[estimator.loss]
        weights = weights_of_scores(estimator)
        objective = averaged(of_classes(estimator, loss), sgd_penalty(estimator, factor), class_weight=weights)
    if estimator.loss == "log_loss":
        return sigmoid_end(op, z, objective) if len(estimator.classes_) == 2 else one_vs_rest(op, z, objective)
    # the probabilities of modified_huber, (clip(z, −1, 1) + 1)/2, have no gradient far from the boundary: use scores
    return scores_end(op, z, estimator.classes_, objective)


def passive_aggressive(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """For each row the smallest step that brings the hinge loss to 0, or one bounded by C."""
    loss = of_classes(estimator, "hinge" if estimator.loss == "hinge" else "squared_hinge")
    lacking = "its step sizes, bounded by C (it minimizes no sum over rows)"
    objective = averaged(loss, missing=lacking, class_weight=weights_of_scores(estimator))
    return scores_end(op, scores(op, estimator, x, dtype), estimator.classes_, objective)


def ridge(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """Σ (z − s)² + α·‖w‖² of s = ±1, of one class against the rest; (z − s)² = (1 − s·z)²."""
    z = scores(op, estimator, x, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows without the names of the columns
        predicted = estimator.predict(np.zeros((1, estimator.n_features_in_)))
    if predicted.ndim == 2:
        return End("multilabel", z, z, objective=ridge_objective(estimator, "squared_margin"))
    loss = of_classes(estimator, "squared_margin")
    return scores_end(op, z, estimator.classes_, ridge_objective(estimator, loss, class_weight=class_weight(estimator)))


def linear_svc(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """C·Σ l + ½·‖w‖², or ‖w‖₁, with the intercept among w; here divided by C.

    Crammer and Singer's objective has ½·‖w‖² of each class: of two classes, w is the difference of both, ½·w and −½·w.
    """
    inverse, singer = 1 / float(estimator.C), estimator.multi_class == "crammer_singer"
    penalty = {"l1": inverse} if estimator.penalty == "l1" and not singer else {"l2": inverse / 2}
    if singer and len(estimator.classes_) == 2:
        penalty = {"l2": inverse / 4}
    weights = (class_weight if singer else weights_of_scores)(estimator, counts_weights=True)
    loss = {"name": "hinge"} if singer else of_classes(estimator, estimator.loss)
    objective = summed(loss, _with_intercept(estimator, penalty), class_weight=weights)
    return scores_end(op, scores(op, estimator, x, dtype), estimator.classes_, objective)


def _with_intercept(estimator: Any, penalty: dict[str, float]) -> dict[str, dict[str, float]]:
    """Penalize b/intercept_scaling like a coefficient."""
    terms = {"coefficient": penalty}
    if estimator.fit_intercept:
        scale = float(estimator.intercept_scaling)
        terms["intercept"] = {kind: s / scale ** (1 if kind == "l1" else 2) for kind, s in penalty.items()}
    return terms


@regressor
def linear_svr(estimator: Any) -> Objective:
    """C·Σ l + ½·‖w‖² with the intercept among w; here divided by C."""
    loss = {"name": estimator.loss, "epsilon": float(estimator.epsilon)}
    return summed(loss, _with_intercept(estimator, {"l2": 1 / (2 * float(estimator.C))}))


def discriminant(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """LDA: softmax of linear scores, p = σ(z) of two classes."""
    z = scores(op, estimator, x, dtype)
    lacking = "its Gaussians with a shared covariance (training fits label probabilities)"
    if len(estimator.classes_) == 2:
        return sigmoid_end(op, z, averaged("log", missing=lacking))
    return softmax_end(op, z, estimator.classes_, averaged("cross_entropy", missing=lacking))._replace(ranking=z)
