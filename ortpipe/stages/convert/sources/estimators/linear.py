"""Linear regressors: ŷ = x · coefficient + intercept, each with the objective that scikit-learn fits it by."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core.builder import Builder
from ortpipe.stages.convert.objective import Objective, Strengths, averaged, summed
from ortpipe.stages.convert.sources.estimators.end import End, array_of, parameter

JOINT = "the joint fit of {} (training keeps the fitted value)"


def scores(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """x · coefficient + intercept, [N, K]."""
    rank, intercept = array_of(estimator, "coef_").ndim, array_of(estimator, "intercept_")
    steps = [["transpose"]] if rank == 2 else [["reshape", 1, -1], ["transpose"]]
    weight = parameter(op, estimator, "coefficient", "coef_", *steps, dtype=dtype)
    if not getattr(estimator, "fit_intercept", True):
        return op.Gemm(x, weight)
    width = 1 if rank == 1 else len(array_of(estimator, "coef_"))
    if intercept.size != width:  # one number for all columns
        return op.Gemm(x, weight) + op.like(intercept.reshape(-1), x)
    return op.Gemm(x, weight, parameter(op, estimator, "intercept", "intercept_", ["reshape", -1], dtype=dtype))


def regressor(objective: Callable[[Any], Objective]) -> Callable[[Builder, Any, ir.Value, Any], End]:
    """Return the function that writes a linear regressor with the objective of its settings."""

    def write(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
        return End("regression", None, scores(op, estimator, x, dtype), objective=objective(estimator))

    return write


def coefficient(**strengths: float) -> Mapping[str, Strengths]:
    """Return the penalties of the coefficient."""
    return {"coefficient": strengths}


@regressor
def least_squares(estimator: Any) -> Objective:
    """Σ (ŷ − y)²."""
    missing = "the constraint to non-negative coefficients" if getattr(estimator, "positive", False) else ""
    return summed("l2", missing=missing)


def ridge_objective(estimator: Any, loss: str | Mapping[str, Any] = "l2", **fields: Any) -> Objective:
    """Σ l + α·‖w‖²; for a RidgeCV with its selected α."""
    alpha = np.ravel(getattr(estimator, "alpha_", getattr(estimator, "alpha", 0)))
    if np.ptp(alpha):
        return summed(loss, missing="its alpha, one value per column", **fields)
    missing = "the constraint to non-negative coefficients" if getattr(estimator, "positive", False) else ""
    return summed(loss, coefficient(l2=float(alpha[0])), missing, **fields)


@regressor
def elastic_net(estimator: Any) -> Objective:
    """1/(2N)·Σ (ŷ − y)² + α·ρ·‖w‖₁ + ½·α·(1 − ρ)·‖w‖², a Lasso with ρ = 1; here twice that.

    For several tasks, ‖w‖₁ is Σⱼ ‖wⱼ‖ with wⱼ the coefficients of a feature.
    """
    alpha = float(getattr(estimator, "alpha_", getattr(estimator, "alpha", 0)))
    share = float(getattr(estimator, "l1_ratio_", getattr(estimator, "l1_ratio", 1)))
    missing = "the constraint to non-negative coefficients" if getattr(estimator, "positive", False) else ""
    kind = "group" if type(estimator).__name__.startswith("MultiTask") else "l1"
    penalty = coefficient(**{kind: 2 * alpha * share, "l2": alpha * (1 - share)})
    return averaged("l2", penalty, missing, divides_weights=True)


@regressor
def bayesian_ridge(estimator: Any) -> Objective:
    """½·α·Σ (ŷ − y)² + ½·λ·‖w‖², the posterior's mode for the estimated α and λ."""
    penalty, missing = coefficient(l2=float(estimator.lambda_ / estimator.alpha_)), JOINT.format("alpha_ and lambda_")
    return summed("l2", penalty, missing)


@regressor
def huber(estimator: Any) -> Objective:
    """Σ σ + σ·H((ŷ − y)/σ) + α·‖w‖² of H(z) = z² up to ε, 2·ε·|z| − ε² beyond.

    With σ fixed, σ·H(d/σ) is 2/σ times the Huber loss of δ = ε·σ.
    """
    loss = {"name": "huber", "delta": float(estimator.epsilon * estimator.scale_)}
    penalty = coefficient(l2=float(estimator.alpha * estimator.scale_ / 2))
    return summed(loss, penalty, JOINT.format(f"sigma ({estimator.scale_:.6g})"))


@regressor
def quantile(estimator: Any) -> Objective:
    """1/N·Σ pinball(y − ŷ) + α·‖w‖₁."""
    loss = {"name": "quantile", "quantiles": [float(estimator.quantile)]}
    penalty = coefficient(l1=float(estimator.alpha))
    return averaged(loss, penalty, divides_weights=True)


@regressor
def sgd(estimator: Any) -> Objective:
    """1/N·Σ l + α·R(w): ½·‖w‖², ‖w‖₁ or their mix; its squared error has a factor ½."""
    name, epsilon = estimator.loss, float(estimator.epsilon)
    loss, factor = {
        "squared_error": ({"name": "l2"}, 2.0),
        "huber": ({"name": "huber", "delta": epsilon}, 1.0),
        "epsilon_insensitive": ({"name": name, "epsilon": epsilon}, 1.0),
        "squared_epsilon_insensitive": ({"name": name, "epsilon": epsilon}, 1.0),
    }[name]
    return averaged(loss, sgd_penalty(estimator, factor))


def sgd_penalty(estimator: Any, factor: float = 1.0) -> Mapping[str, Strengths]:
    """Return α·R(w) times a factor."""
    alpha = factor * float(estimator.alpha)
    share = {"l1": 1.0, "l2": 0.0, "elasticnet": estimator.l1_ratio}.get(estimator.penalty)
    return {} if share is None else coefficient(l1=alpha * share, l2=alpha * (1 - share) / 2)


@regressor
def passive_aggressive(estimator: Any) -> Objective:
    """For each row the smallest step that brings l to 0, or one bounded by C."""
    loss = {"name": estimator.loss, "epsilon": float(estimator.epsilon)}
    return averaged(loss, missing="its step sizes, bounded by C (it minimizes no sum over rows)")


def glm(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """1/(2N)·Σ deviance(y, μ) + ½·α·‖w‖² of μ = exp(x · w + b), or of μ = x · w + b."""
    z = scores(op, estimator, x, dtype)
    power = {"PoissonRegressor": 1.0, "GammaRegressor": 2.0}.get(type(estimator).__name__)
    power = float(estimator.power) if power is None else power
    is_log = getattr(estimator, "link", "log") == "log" or (estimator.link == "auto" and power > 0)
    names = {0.0: "l2", 1.0: "poisson", 2.0: "gamma"}
    loss: dict[str, Any] = {"name": names.get(power, "tweedie"), "link": "identity"}
    penalty = float(estimator.alpha) / 2
    if power == 0:  # the deviance is (y − μ)²
        loss, penalty = {"name": "l2"}, float(estimator.alpha)
    elif power not in names:
        loss |= {"power": power}
    # these losses need a mean above 0, which only the logarithmic link guarantees
    objective = averaged(loss, coefficient(l2=penalty), divides_weights=True) if is_log or power == 0 else None
    return End("regression", None, op.Exp(z) if is_log else z, objective=objective)


def pls(op: Builder, estimator: Any, x: ir.Value, dtype: Any) -> End:
    """(x − mean) · coefficient + intercept."""
    [mean] = estimator.inverse_transform(np.zeros((1, estimator.x_loadings_.shape[1])))
    missing = "its restriction to a few components (training updates all coefficients)"
    return regressor(lambda _: summed("l2", missing=missing))(op, estimator, x - op.like(mean, x), dtype)


ridge = regressor(ridge_objective)
sparse_features = regressor(lambda _: summed("l2", missing="its feature selection (training updates all coefficients)"))
ard = regressor(lambda _: summed("l2", missing="its lambda_, one value per feature"))
theil_sen = regressor(lambda _: averaged("l1", missing="its median of fits to subsets, which is not a loss per row"))
