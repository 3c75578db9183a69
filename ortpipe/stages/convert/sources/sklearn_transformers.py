"""scikit-learn's transformers in standard operators."""

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from ortpipe.graph.builder import Builder

Transform = Callable[[Builder, Any, ir.Value, Any], ir.Value]


def standard_scaler(op: Builder, scaler: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """(x − mean) / scale, each part only if the scaler was told to."""
    if scaler.mean_ is not None and scaler.with_mean:
        x = op.Sub(x, op.const(scaler.mean_.astype(dtype)))
    if scaler.scale_ is not None and scaler.with_std:
        x = op.Div(x, op.const(scaler.scale_.astype(dtype)))
    return x


def min_max_scaler(op: Builder, scaler: Any, x: ir.Value, dtype: Any) -> ir.Value:
    """x · scale + min, clipped to the feature range if the scaler was told to."""
    x = op.Add(op.Mul(x, op.const(scaler.scale_.astype(dtype))), op.const(scaler.min_.astype(dtype)))
    if scaler.clip:
        x = op.Clip(x, *map(float, scaler.feature_range))
    return x


TRANSFORMERS: dict[str, Transform] = {
    "sklearn.preprocessing.StandardScaler": standard_scaler,
    "sklearn.preprocessing.MinMaxScaler": min_max_scaler,
}
