"""TransformedTargetRegressor: the target's transformation, inverted at the end of the graph."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.origins import within
from ortpipe.stages.convert.sources.estimators import class_path, end_of
from ortpipe.stages.convert.sources.estimators.end import End
from ortpipe.stages.convert.sources.sklearn_transformers import FUNCTIONS, elementwise
from ortpipe.stages.convert.sources.sklearn_walk import is_idle


def transformed_target(op: Builder, estimator: Any, x: Any, dtype: Any) -> End:
    """The inner regressor's prediction, back on the target's own scale: what losses compare with labels."""
    with within(op.graph, "regressor_"):
        end = end_of(op, estimator.regressor_, x, dtype)
    value = _inverse(op, estimator.transformer_, end.prediction, dtype)
    note = (
        "the loss is of the target on its own scale; scikit-learn fitted the regressor on it as "
        f"{type(estimator.transformer_).__name__} gives it"
    )
    return End("regression", None, value, notes=(*end.notes, note), rounding=end.rounding)


def _inverse(op: Builder, step: Any, y: ir.Value, dtype: Any) -> ir.Value:
    path = class_path(step)
    if path == "sklearn.pipeline.Pipeline":
        for _, part in reversed(step.steps):
            y = y if is_idle(part) else _inverse(op, part, y, dtype)
        return y
    if path not in INVERSES:
        raise ConvertError(
            "The transformer of a target must be one whose inverse ortpipe supports.",
            got=path,
            fix=f"Take one of {', '.join(name.rpartition('.')[2] for name in INVERSES)}.",
        )
    return INVERSES[path](op, step, y, np.dtype(dtype))


def _standard(op: Builder, step: Any, y: ir.Value, dtype: np.dtype) -> ir.Value:
    """y · scale + mean."""
    scale = step.scale_ if step.with_std else None
    return _line(op, y, scale, step.mean_ if step.with_mean else None, dtype)


def _min_max(op: Builder, step: Any, y: ir.Value, dtype: np.dtype) -> ir.Value:
    """(y − min) / scale."""
    return _line(op, y, 1 / step.scale_, -step.min_ / step.scale_, dtype)


def _max_abs(op: Builder, step: Any, y: ir.Value, dtype: np.dtype) -> ir.Value:
    """y · scale."""
    return _line(op, y, step.scale_, None, dtype)


def _robust(op: Builder, step: Any, y: ir.Value, dtype: np.dtype) -> ir.Value:
    """y · scale + center."""
    center = step.center_ if step.with_centering else None
    return _line(op, y, step.scale_ if step.with_scaling else None, center, dtype)


def _line(op: Builder, y: ir.Value, factor: Any, shift: Any, dtype: np.dtype) -> ir.Value:
    y = y if factor is None else op.Mul(y, op.const(np.asarray(factor).astype(dtype)))
    return y if shift is None else op.Add(y, op.const(np.asarray(shift).astype(dtype)))


def _function(op: Builder, step: Any, y: ir.Value, dtype: np.dtype) -> ir.Value:
    """The inverse function, one of NumPy's."""
    inverse = step.inverse_func
    if inverse is None:
        return y
    if not isinstance(inverse, np.ufunc) or inverse.__name__ not in FUNCTIONS or step.inv_kw_args:
        rule = "A target's inverse function must have an operator: one of NumPy's, without keywords."
        names = ", ".join(f"numpy.{name}" for name in FUNCTIONS)
        raise ConvertError(rule, got=getattr(inverse, "__name__", inverse), fix=f"Take one of {names}.")
    return elementwise(op, inverse.__name__, y)


def _power(op: Builder, step: Any, y: ir.Value, dtype: np.dtype) -> ir.Value:
    """Box-Cox (y·λ + 1)^(1/λ), or Yeo-Johnson: for y ≥ 0 that − 1, for y < 0 1 − that of −y with 2 − λ."""
    if step.standardize:
        y = _standard(op, step._scaler, y, dtype)
    if step.method == "box-cox":
        return op.Exp(_log_root(op, y, step.lambdas_, dtype))
    positive = op.Sub(op.Exp(_log_root(op, op.Relu(y), step.lambdas_, dtype)), 1.0)
    negative = op.Sub(op.Exp(_log_root(op, op.Relu(op.Neg(y)), 2 - step.lambdas_, dtype)), 1.0)
    return op.Sub(positive, negative)


def _log_root(op: Builder, y: ir.Value, lambdas: np.ndarray, dtype: np.dtype) -> ir.Value:
    """log(y·λ + 1)/λ; y where λ is 0."""
    is_zero = np.abs(lambdas) < np.spacing(1.0)
    base = op.Add(op.Mul(y, op.const(np.where(is_zero, 0, lambdas).astype(dtype))), 1.0)
    root = op.Div(op.Log(base), op.const(np.where(is_zero, 1, lambdas).astype(dtype)))
    return op.Where(op.const(is_zero), y, root) if is_zero.any() else root


INVERSES: dict[str, Callable[[Builder, Any, ir.Value, np.dtype], ir.Value]] = {
    "sklearn.preprocessing.StandardScaler": _standard,
    "sklearn.preprocessing.MinMaxScaler": _min_max,
    "sklearn.preprocessing.MaxAbsScaler": _max_abs,
    "sklearn.preprocessing.RobustScaler": _robust,
    "sklearn.preprocessing.FunctionTransformer": _function,
    "sklearn.preprocessing.PowerTransformer": _power,
}
