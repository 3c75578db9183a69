"""Operators of ai.onnx.ml that prepare features, and support vector regression, rewritten in standard ones."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.graph.origins import mark

FLOAT = ir.DataType.FLOAT


def as_float(op: Builder, x: ir.Value | None) -> ir.Value:
    """Return numbers as float32, which these operators compute in."""
    assert x is not None
    return x if x.dtype == FLOAT else op.Cast(x, to=FLOAT)


def floats(node: ir.Node, name: str) -> np.ndarray:
    """Return an attribute's numbers, none where it is not there."""
    return np.array(node.attributes.get_floats(name, ()), np.float32)


def imputer(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Imputer: a constant where x is nan, or the value that marks what is missing."""
    [x], fill = node.inputs, floats(node, "imputed_value_floats")
    if x is None or not fill.size:
        return None  # of integers, which no gradient passes
    marker = node.attributes.get_float("replaced_value_float", 0.0)
    x = as_float(op, x)
    missing = op.IsNaN(x) if np.isnan(marker) else op.Equal(x, op.const(np.float32(marker)))
    return [op.Where(missing, op.const(fill), x)]


def binarizer(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Binarizer: 1 where x > threshold, else 0; behind weights it stays, because no gradient passes."""
    x = as_float(op, node.inputs[0])
    if query.float_initializers(op.graph, x):
        return None
    return [op.Cast(op.Greater(x, op.const(np.float32(node.attributes.get_float("threshold", 0.0)))), to=FLOAT)]


def feature_vectorizer(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """FeatureVectorizer: inputs side by side, as floats."""
    sizes = node.attributes.get_ints("inputdimensions", ())
    if len(sizes) != len(node.inputs):
        return None
    blocks = [op.Reshape(as_float(op, x), [-1, size]) for x, size in zip(node.inputs, sizes, strict=True)]
    return [op.Concat(*blocks, axis=1) if len(blocks) > 1 else blocks[0]]


def one_hot_encoder(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """OneHotEncoder of whole numbers: a last axis with 1 at the category; of words, and behind weights, it stays."""
    [x], categories = node.inputs, node.attributes.get_ints("cats_int64s", ())
    if x is None or not len(categories) or query.float_initializers(op.graph, x):
        return None
    whole = x if x.dtype == ir.DataType.INT64 else op.Cast(x, to=ir.DataType.INT64)
    return [op.Cast(op.Equal(op.Unsqueeze(whole, [-1]), op.const(np.array(categories, np.int64))), to=FLOAT)]


def svm_regressor(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """SVMRegressor: Σ coefficients · K(x, support vectors) + rho, both trainable."""
    get, x = node.attributes, node.inputs[0]
    dual, rho = floats(node, "coefficients"), floats(node, "rho")
    kernel, count = get.get_string("kernel_type", "LINEAR"), get.get_int("n_supports", 0)
    if get.get_int("one_class", 0) or get.get_string("post_transform", "NONE") != "NONE" or not dual.size:
        return None
    x, place = as_float(op, x), node.outputs[0].name

    def parameter(name: str, attribute: str, array: np.ndarray, *steps: Any) -> ir.Value:
        return mark(
            op.parameter(name, np.ascontiguousarray(array)),
            {"node": place, "attribute": attribute, "transform": list(steps)},
        )

    intercept = parameter("intercept", "rho", rho[:1])
    if not count:
        weight = parameter("coefficient", "coefficients", dual[:, None], ["reshape", len(dual), 1])
        return [op.Gemm(x, weight, intercept)]
    gamma, shift, degree = (float(number) for number in floats(node, "kernel_params"))
    shape = ["reshape", count, -1]
    kept = parameter("support_vectors", "support_vectors", floats(node, "support_vectors").reshape(count, -1), shape)
    if kernel == "RBF":
        apart = op.Unsqueeze(x, [1]) - kept
        similar = op.Exp(op.ReduceSum(apart * apart, [-1], keepdims=0) * -gamma)
    else:
        similar = op.MatMul(x, op.Transpose(kept, perm=[1, 0]))
        if kernel != "LINEAR":
            similar = similar * gamma + shift
            similar = op.Tanh(similar) if kernel == "SIGMOID" else op.Pow(similar, op.const(np.float32(degree)))
    weight = parameter("dual_coefficient", "coefficients", dual[:, None], ["reshape", count, 1])
    return [op.Gemm(similar, weight, intercept)]
