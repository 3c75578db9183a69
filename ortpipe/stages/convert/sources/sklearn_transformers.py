"""scikit-learn's transformers of numbers in standard operators: (op, fitted step, x [N, K], dtype) → [N, M].

skl2onnx 1.20 converts half of these classes, but PolynomialFeatures, KBinsDiscretizer and PowerTransformer not in
float64, Normalizer not with norm="max", QuantileTransformer not to normal shares, and some with many times the nodes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder
from ortpipe.stages.convert.dialects.kernels import KERNELS, kernel
from ortpipe.stages.convert.sources.sklearn_encoders import apply_step
from ortpipe.stages.convert.sources.sklearn_tables import kbins, power, quantile, spline

Transform = Callable[[Builder, Any, ir.Value, Any], ir.Value]
PROBES = 256  # rows per call of a step's transform


def scaler(op: Builder, step: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """(x − center) / scale, each part if the scaler has that setting; clipped to [−1, 1] if it clips."""
    center, scale = center_and_scale(step)
    if center is not None:
        x = op.Sub(x, op.const(center.astype(dtype)))
    if scale is not None:
        x = op.Div(x, op.const(scale.astype(dtype)))
    return op.Clip(x, -1.0, 1.0) if getattr(step, "clip", False) else x


def center_and_scale(step: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the center and scale of a StandardScaler, RobustScaler or MaxAbsScaler; None: it has none."""
    match type(step).__name__:
        case "StandardScaler":
            return step.mean_ if step.with_mean else None, step.scale_ if step.with_std else None
        case "RobustScaler":
            return step.center_ if step.with_centering else None, step.scale_ if step.with_scaling else None
    return None, step.scale_


def min_max_scaler(op: Builder, step: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """x · scale + min, clipped to the feature range if the scaler clips."""
    x = op.Add(op.Mul(x, op.const(step.scale_.astype(dtype))), op.const(step.min_.astype(dtype)))
    return op.Clip(x, *map(float, step.feature_range)) if step.clip else x


def normalizer(op: Builder, step: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """x / ‖x‖ by row, where the norm is not 0."""
    size = op.Abs(x)
    match step.norm:
        case "l1":
            norm = op.ReduceSum(size, [-1])
        case "l2":
            norm = op.Sqrt(op.ReduceSum(op.Mul(x, x), [-1]))
        case _:
            norm = op.ReduceMax(size, [-1])
    return op.Div(x, op.Where(op.Equal(norm, op.const(np.array(0, dtype))), op.const(np.array(1, dtype)), norm))


def binarizer(op: Builder, step: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """1 where x > threshold, else 0."""
    return op.cast(op.Greater(x, op.const(np.array(step.threshold, dtype))), x)


def affine(op: Builder, step: Any, x: ir.Value, dtype: Any) -> ir.Value:
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
    if center.any():
        x = op.Sub(x, op.const(center.astype(dtype)))
    x = op.MatMul(x, op.const(np.concatenate(rows).astype(dtype)))
    return op.Add(x, op.const(bias.astype(dtype))) if bias.any() else x


def polynomial(op: Builder, step: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """Π xⱼ^power, as products of columns; a column of ones fills up products with fewer factors."""
    ones = op.Add(op.Mul(op.Gather(x, [0], axis=1), 0.0), 1.0)
    degree = int(step.powers_.sum(axis=1).max())
    factors = np.full((len(step.powers_), max(1, degree)), step.n_features_in_)
    for row, powers in zip(factors, step.powers_, strict=True):
        columns = np.repeat(np.arange(len(powers)), powers)
        row[: len(columns)] = columns
    x = op.Concat(x, ones, axis=-1)
    product, *further_factors = (op.Gather(x, column, axis=1) for column in factors.T)
    for factor in further_factors:
        product = op.Mul(product, factor)
    return product


def rbf_sampler(op: Builder, step: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """√(2/M) · cos(x · W + b)."""
    angle = op.Gemm(x, op.const(step.random_weights_.astype(dtype)), op.const(step.random_offset_.astype(dtype)))
    return op.Mul(op.Cos(angle), float(np.sqrt(2 / step.n_components)))


def skewed_chi2_sampler(op: Builder, step: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """√(2/M) · cos(log(x + skewedness) · W + b)."""
    return rbf_sampler(op, step, op.Log(op.Add(x, float(step.skewedness))), dtype)


def additive_chi2_sampler(op: Builder, step: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """√(x·h), then for j = 1 …: √(2x·h / cosh(πjh)) · cos(j·h·log x) and the same with sin; 0 where x is 0."""
    interval = step.sample_interval or {1: 0.8, 2: 0.5, 3: 0.4}[step.sample_steps]
    zero = op.Equal(x, op.const(np.array(0, dtype)))
    log = op.Log(op.Where(zero, op.const(np.array(1, dtype)), x))
    blocks = [op.Sqrt(op.Mul(x, float(interval)))]
    for j in range(1, step.sample_steps):
        factor = op.Sqrt(op.Mul(x, float(2 * interval / np.cosh(np.pi * j * interval))))
        angle = op.Mul(log, float(j * interval))
        blocks += [op.Mul(factor, op.Cos(angle)), op.Mul(factor, op.Sin(angle))]
    return op.Concat(*blocks, axis=-1) if len(blocks) > 1 else blocks[0]


def distances(op: Builder, step: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """‖x − center‖ of each cluster."""
    centers = step.subcluster_centers_ if hasattr(step, "subcluster_centers_") else step.cluster_centers_
    differences = op.Sub(op.Unsqueeze(x, [1]), op.const(centers.astype(dtype)))
    return op.Sqrt(op.ReduceSum(op.Mul(differences, differences), [-1], keepdims=0))


def nystroem(op: Builder, step: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """K(x, components) · normalizationᵀ."""
    gamma = float(step.gamma or 1 / step.components_.shape[1])
    shift, degree = (default if value is None else value for value, default in ((step.coef0, 1), (step.degree, 3)))
    components = op.const(step.components_.astype(dtype))
    values = kernel(op, step.kernel, x, components, gamma, float(shift), float(degree))
    return op.MatMul(values, op.const(step.normalization_.T.astype(dtype)))


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


def bernoulli_rbm(op: Builder, step: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """σ(x · components + intercept)."""
    weight, bias = step.components_.T.astype(dtype), step.intercept_hidden_.astype(dtype)
    return op.Sigmoid(op.Gemm(x, op.const(weight), op.const(bias)))


def function_transformer(op: Builder, step: Any, x: ir.Value, dtype: Any) -> ir.Value:
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
    "log1p": lambda op, x: op.Log(op.Add(x, 1.0)),
    "expm1": lambda op, x: op.Sub(op.Exp(x), 1.0),
    "log2": lambda op, x: op.Div(op.Log(x), float(np.log(2))),
    "log10": lambda op, x: op.Div(op.Log(x), float(np.log(10))),
    "square": lambda op, x: op.Mul(x, x),
    "cbrt": lambda op, x: op.Mul(op.Sign(x), op.Pow(op.Abs(x), 1 / 3)),
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
