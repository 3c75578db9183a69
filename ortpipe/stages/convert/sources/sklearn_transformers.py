"""scikit-learn's transformers of numbers in standard operators: (op, fitted step, x [N, K]) → [N, M].

skl2onnx 1.20 converts half of these classes, but PolynomialFeatures, KBinsDiscretizer and PowerTransformer not in
float64, Normalizer not with norm="max", QuantileTransformer not to normal shares, and some with many times the nodes.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder
from ortpipe.stages.convert.dialects.kernels import KERNELS, kernel
from ortpipe.stages.convert.sources.sklearn_columns import apply_step
from ortpipe.stages.convert.sources.sklearn_tables import kbins, power, quantile, spline

Transform = Callable[[Builder, Any, ir.Value], ir.Value]
PROBES = 256  # rows per call of a step's transform


def scaler(op: Builder, step: Any, x: ir.Value) -> ir.Value:
    """(x − center) / scale, each part if the scaler has that setting; clipped to [−1, 1] if it clips."""
    center, scale = center_and_scale(step)
    x = x if center is None else x - op.like(center, x)
    x = x if scale is None else x / op.like(scale, x)
    return op.Clip(x, -1.0, 1.0) if getattr(step, "clip", False) else x


def center_and_scale(step: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the center and scale of a StandardScaler, RobustScaler or MaxAbsScaler; None: it has none."""
    match type(step).__name__:
        case "StandardScaler":
            return step.mean_ if step.with_mean else None, step.scale_ if step.with_std else None
        case "RobustScaler":
            return step.center_ if step.with_centering else None, step.scale_ if step.with_scaling else None
    return None, step.scale_


def min_max_scaler(op: Builder, step: Any, x: ir.Value) -> ir.Value:
    """x · scale + min, clipped to the feature range if the scaler clips."""
    x = x * op.like(step.scale_, x) + op.like(step.min_, x)
    return op.Clip(x, *map(float, step.feature_range)) if step.clip else x


def normalizer(op: Builder, step: Any, x: ir.Value) -> ir.Value:
    """x / ‖x‖ by row, where the norm is not 0."""
    size = op.Abs(x)
    norm = op.ReduceMax(size, [-1]) if step.norm == "max" else op.ReduceSum(size if step.norm == "l1" else x * x, [-1])
    norm = op.Sqrt(norm) if step.norm == "l2" else norm
    return x / op.Where(op.Equal(norm, 0), 1, norm)


def binarizer(op: Builder, step: Any, x: ir.Value) -> ir.Value:
    """1 where x > threshold, else 0."""
    return op.cast(op.Greater(x, float(step.threshold)), x)


def affine(op: Builder, step: Any, x: ir.Value) -> ir.Value:
    """(x − c) · A + b with the step's mean c; A and b are measured by the fitted step's output for probes."""
    names = ("mean_", "xbar_", "_x_mean")
    center = next((value for name in names if (value := getattr(step, name, None)) is not None), None)
    center = np.zeros(step.n_features_in_) if center is None else np.asarray(center, np.float64)
    distance = np.maximum(1, np.abs(center))  # large enough not to be lost to rounding beside the mean
    rows = []
    for first in range(0, len(center), PROBES):
        places = np.arange(first, min(len(center), first + PROBES))
        probe = np.repeat(center[None], 1 + len(places), axis=0)
        probe[1 + np.arange(len(places)), places] += distance[places]
        bias, *outputs = apply_step(step, probe)
        rows.append((np.array(outputs) - bias) / distance[places, None])
    x = op.MatMul(x - op.like(center, x) if center.any() else x, op.like(np.concatenate(rows), x))
    return x + op.like(bias, x) if bias.any() else x


def polynomial(op: Builder, step: Any, x: ir.Value) -> ir.Value:
    """Π xⱼ^power, as products of columns; a column of ones fills up products with fewer factors."""
    ones = op.Gather(x, [0], axis=1) * 0.0 + 1.0
    degree = int(step.powers_.sum(axis=1).max())
    factors = np.full((len(step.powers_), max(1, degree)), step.n_features_in_)
    for row, powers in zip(factors, step.powers_, strict=True):
        columns = np.repeat(np.arange(len(powers)), powers)
        row[: len(columns)] = columns
    x = op.Concat(x, ones, axis=-1)
    product, *further_factors = (op.Gather(x, column, axis=1) for column in factors.T)
    return math.prod(further_factors, start=product)


def rbf_sampler(op: Builder, step: Any, x: ir.Value) -> ir.Value:
    """√(2/M) · cos(x · W + b)."""
    angle = op.Gemm(x, op.like(step.random_weights_, x), op.like(step.random_offset_, x))
    return op.Cos(angle) * math.sqrt(2 / step.n_components)


def skewed_chi2_sampler(op: Builder, step: Any, x: ir.Value) -> ir.Value:
    """√(2/M) · cos(log(x + skewedness) · W + b)."""
    return rbf_sampler(op, step, op.Log(x + float(step.skewedness)))


def additive_chi2_sampler(op: Builder, step: Any, x: ir.Value) -> ir.Value:
    """√(x·h), then for j = 1 …: √(2x·h / cosh(πjh)) · cos(j·h·log x) and the same with sin; 0 where x is 0."""
    interval = step.sample_interval or {1: 0.8, 2: 0.5, 3: 0.4}[step.sample_steps]
    log = op.Log(op.Where(op.Equal(x, 0), 1, x))
    blocks = [op.Sqrt(x * float(interval))]
    for j in range(1, step.sample_steps):
        factor, angle = op.Sqrt(x * float(2 * interval / np.cosh(np.pi * j * interval))), log * float(j * interval)
        blocks += [factor * op.Cos(angle), factor * op.Sin(angle)]
    return op.Concat(*blocks, axis=-1) if len(blocks) > 1 else blocks[0]


def distances(op: Builder, step: Any, x: ir.Value) -> ir.Value:
    """‖x − center‖ of each cluster."""
    centers = step.subcluster_centers_ if hasattr(step, "subcluster_centers_") else step.cluster_centers_
    differences = op.Unsqueeze(x, [1]) - op.like(centers, x)
    return op.Sqrt(op.ReduceSum(differences * differences, [-1], keepdims=0))


def nystroem(op: Builder, step: Any, x: ir.Value) -> ir.Value:
    """K(x, components) · normalizationᵀ."""
    gamma = float(step.gamma or 1 / step.components_.shape[1])
    shift, degree = (default if value is None else value for value, default in ((step.coef0, 1), (step.degree, 3)))
    values = kernel(op, step.kernel, x, op.like(step.components_, x), gamma, float(shift), float(degree))
    return op.MatMul(values, op.like(step.normalization_.T, x))


def check_settings(step: Any) -> None:
    """Reject settings of a step that have no operators."""
    if type(step).__name__ == "FunctionTransformer":
        if step.func is not None or step.kw_args:
            numpy_function(step.func, step.kw_args)
    elif type(step).__name__ == "Nystroem" and step.kernel not in KERNELS:
        rule, fix = "A kernel must be rbf, linear, poly or sigmoid.", "Choose one of these."
        raise ConvertError(rule, got=f"kernel={step.kernel!r} of Nystroem", fix=fix)
    elif type(step).__name__ == "FeatureAgglomeration" and step.pooling_func is not np.mean:
        rule, fix = "Clusters of columns must become their means.", "Leave out pooling_func."
        raise ConvertError(rule, got=f"pooling_func={step.pooling_func}", fix=fix)


def bernoulli_rbm(op: Builder, step: Any, x: ir.Value) -> ir.Value:
    """σ(x · components + intercept)."""
    return op.Sigmoid(op.Gemm(x, op.like(step.components_.T, x), op.like(step.intercept_hidden_, x)))


def function_transformer(op: Builder, step: Any, x: ir.Value) -> ir.Value:
    """A NumPy function that has an operator; without a function, x itself."""
    return x if step.func is None else numpy_function(step.func, step.kw_args)(op, x)


def _operator(name: str) -> Callable[[Builder, ir.Value], ir.Value]:
    return lambda op, x: getattr(op, name)(x)


RENAMED = {"absolute": "Abs", "fabs": "Abs", "negative": "Neg", "rint": "Round"}
# NumPy function → the same in operators
FUNCTIONS: dict[str, Callable[[Builder, ir.Value], ir.Value]] = {
    **{
        name: _operator(name.capitalize())
        for name in ("sqrt", "exp", "log", "floor", "ceil", "sin", "cos", "tanh", "reciprocal", "sign")
    },
    **{name: _operator(operator) for name, operator in RENAMED.items()},
    "log1p": lambda op, x: op.Log(x + 1.0),
    "expm1": lambda op, x: op.Exp(x) - 1.0,
    "log2": lambda op, x: op.Log(x) / math.log(2),
    "log10": lambda op, x: op.Log(x) / math.log(10),
    "square": lambda op, x: x * x,
    "cbrt": lambda op, x: op.Sign(x) * op.Pow(op.Abs(x), 1 / 3),
}


def numpy_function(function: Any, keywords: Any) -> Callable[[Builder, ir.Value], ir.Value]:
    """Return the function in operators; reject a function without them, or with keywords."""
    name = getattr(function, "__name__", function)
    if not isinstance(function, np.ufunc) or name not in FUNCTIONS or keywords:
        raise ConvertError(
            "A FunctionTransformer's function, and a target's inverse function, must be NumPy's and have an operator.",
            got=f"{name} with keywords {keywords or 'none'}",
            fix=f"Take one of {', '.join(f'numpy.{name}' for name in FUNCTIONS)}, or make the column in the data.",
        )
    return FUNCTIONS[name]


AFFINE = (
    *(f"decomposition.{name}" for name in ("PCA", "IncrementalPCA", "TruncatedSVD", "FastICA", "FactorAnalysis")),
    *(f"decomposition.{name}" for name in ("SparsePCA", "MiniBatchSparsePCA")),
    *(f"random_projection.{name}" for name in ("GaussianRandomProjection", "SparseRandomProjection")),
    *("discriminant_analysis.LinearDiscriminantAnalysis", "neighbors.NeighborhoodComponentsAnalysis"),
)

TRANSFORMERS: dict[str, Transform] = {
    **{f"sklearn.preprocessing.{name}Scaler": scaler for name in ("Standard", "MaxAbs", "Robust")},
    "sklearn.preprocessing.MinMaxScaler": min_max_scaler,
    "sklearn.preprocessing.Normalizer": normalizer,
    "sklearn.preprocessing.Binarizer": binarizer,
    "sklearn.preprocessing.PolynomialFeatures": polynomial,
    "sklearn.preprocessing.SplineTransformer": spline,
    "sklearn.preprocessing.KBinsDiscretizer": kbins,
    "sklearn.preprocessing.QuantileTransformer": quantile,
    "sklearn.preprocessing.PowerTransformer": power,
    "sklearn.preprocessing.FunctionTransformer": function_transformer,
    **{f"sklearn.{name}": affine for name in AFFINE},
    "sklearn.kernel_approximation.RBFSampler": rbf_sampler,
    "sklearn.kernel_approximation.SkewedChi2Sampler": skewed_chi2_sampler,
    "sklearn.kernel_approximation.AdditiveChi2Sampler": additive_chi2_sampler,
    "sklearn.kernel_approximation.Nystroem": nystroem,
    "sklearn.cluster.FeatureAgglomeration": affine,
    **{f"sklearn.cluster.{name}": distances for name in ("KMeans", "MiniBatchKMeans", "BisectingKMeans", "Birch")},
    "sklearn.neural_network.BernoulliRBM": bernoulli_rbm,
}
