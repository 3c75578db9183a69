"""ai.onnx.ml operators for feature preparation and support vector machines, rewritten in standard operators."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.origins import mark
from ortpipe.stages.convert.dialects.coupling import couple, pairs_of
from ortpipe.stages.convert.dialects.kernels import kernel

FLOAT = ir.DataType.FLOAT


def as_float(op: Builder, x: ir.Value | None) -> ir.Value:
    """Return numbers as float32, the type that these operators compute in."""
    assert x is not None
    return x if x.dtype == FLOAT else op.Cast(x, to=FLOAT)


def floats(node: ir.Node, name: str) -> np.ndarray:
    """Return an attribute's numbers; none if it is missing."""
    return np.array(node.attributes.get_floats(name, ()), np.float32)


def imputer(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Imputer: a constant where x is nan, or equals the value that marks missing numbers."""
    [x], fill = node.inputs, floats(node, "imputed_value_floats")
    if x is None or not fill.size:
        return None  # integers, which have no gradient
    marker = node.attributes.get_float("replaced_value_float", 0.0)
    x = as_float(op, x)
    missing = op.IsNaN(x) if np.isnan(marker) else op.Equal(x, op.const(np.float32(marker)))
    return [op.Where(missing, op.const(fill), x)]


def binarizer(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Binarizer: 1 where x > threshold, else 0; kept behind weights, because it has no gradient."""
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
    """OneHotEncoder of integers: a last axis with 1 at the category; kept for words, and behind weights."""
    [x], categories = node.inputs, node.attributes.get_ints("cats_int64s", ())
    if x is None or not len(categories) or query.float_initializers(op.graph, x):
        return None
    integers = x if x.dtype == ir.DataType.INT64 else op.Cast(x, to=ir.DataType.INT64)
    return [op.Cast(op.Equal(op.Unsqueeze(integers, [-1]), op.const(np.array(categories, np.int64))), to=FLOAT)]


def svm_regressor(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """SVMRegressor: Σ coefficients · K(x, support vectors) + rho, all three trainable."""
    get, x = node.attributes, node.inputs[0]
    dual, rho = floats(node, "coefficients"), floats(node, "rho")
    count = get.get_int("n_supports", 0)
    if get.get_int("one_class", 0) or get.get_string("post_transform", "NONE") != "NONE" or not dual.size:
        return None
    x = as_float(op, x)
    intercept = _parameter(op, node, "intercept", "rho", rho[:1])
    if not count:
        weight = _parameter(op, node, "coefficient", "coefficients", dual[:, None], ["reshape", len(dual), 1])
        return [op.Gemm(x, weight, intercept)]
    values = _kernel_values(op, node, x, count)
    weight = _parameter(op, node, "dual_coefficient", "coefficients", dual[:, None], ["reshape", count, 1])
    return [op.Gemm(values, weight, intercept)]


def svm_classifier(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """SVMClassifier: Σ coefficients · K(x, their support vectors) + rho for each pair of classes, and the most votes.

    Probabilities are Platt's: σ(a·score + b) of each pair's second class, coupled for several classes. The operator is
    kept where the values of two classes contradict the labels: onnxruntime's scores do, unless they are negated next.
    """
    sizes, coefficients = node.attributes.get_ints("vectors_per_class", ()), floats(node, "coefficients")
    labels = [label for kind in ("ints", "strings") for label in _list(node, f"classlabels_{kind}")]
    platt = floats(node, "prob_a"), floats(node, "prob_b")
    classes, count = len(sizes), sum(sizes)
    is_plain = node.attributes.get_string("post_transform", "NONE") == "NONE" and len(labels) == classes and count
    if not is_plain or (classes == 2 and bool(platt[0].size) == _is_negated(node.outputs[1])):
        return None
    pairs = pairs_of(classes)
    owner = np.repeat(np.arange(classes), sizes)
    row = np.stack([np.where(owner == i, j - 1, i) for i, j in pairs]).clip(max=classes - 2)
    mask = np.stack([(owner == i) | (owner == j) for i, j in pairs])
    values = _kernel_values(op, node, as_float(op, node.inputs[0]), count)
    shape = classes - 1, count
    weight = _parameter(op, node, "dual_coefficient", "coefficients", coefficients.reshape(shape), ["reshape", *shape])
    intercept = _parameter(op, node, "intercept", "rho", floats(node, "rho"))
    chosen = op.GatherElements(weight, op.const(row.astype(np.int64)), axis=0) * op.const(mask.astype(np.float32))
    scores = op.Gemm(values, chosen, intercept, transB=1)  # > 0: the first of the pair
    first_wins = op.Cast(op.Greater(scores, 0), to=FLOAT)
    votes_for = np.zeros((2, len(pairs), classes), np.float32)
    for number, pair in enumerate(pairs):
        votes_for[[0, 1], number, pair] = 1
    votes = op.MatMul(first_wins, op.const(votes_for[0])) + op.MatMul(1 - first_wins, op.const(votes_for[1]))
    if platt[0].size:
        slope, shift = (_parameter(op, node, f"platt_{n}", f"prob_{n}", p) for n, p in zip("ab", platt, strict=True))
        second = op.Sigmoid(scores * slope + shift)
        if classes == 2:
            scores = op.Concat(1 - second, second, axis=-1)
        else:
            scores = op.Softmax(couple(op, 1 - second, classes), axis=-1)
    elif classes == 2:
        scores = op.Concat(op.Neg(scores), scores, axis=-1)
    names = np.array(labels, str if isinstance(labels[0], str) else np.int64)
    return [op.Gather(op.const(names), op.ArgMax(votes, axis=1, keepdims=0)), scores]


def _is_negated(scores: ir.Value) -> bool:
    """Return whether all readers of scores negate them, as in skl2onnx's graphs with the option raw_scores."""
    readers = scores.consumers()
    if [node.op_type for node in readers] == ["Cast"]:
        readers = readers[0].outputs[0].consumers()
    factors = [query.constant(v) for node in readers if node.op_type == "Mul" for v in node.inputs]
    signs = [bool((factor < 0).all()) for factor in factors if factor is not None]
    return not scores.is_graph_output() and len(readers) == len(signs) > 0 and all(signs)


def _list(node: ir.Node, name: str) -> list[Any]:
    return list(node.attributes[name].value) if name in node.attributes else []


def _parameter(op: Builder, node: ir.Node, name: str, attribute: str, array: np.ndarray, *steps: Any) -> ir.Value:
    origin = {"node": node.outputs[0].name, "attribute": attribute, "transform": list(steps)}
    return mark(op.parameter(name, np.ascontiguousarray(array)), origin)


def _kernel_values(op: Builder, node: ir.Node, x: ir.Value, count: int) -> ir.Value:
    """Return K(x, support vector) of each row and each support vector; the vectors are trainable."""
    kind = node.attributes.get_string("kernel_type", "LINEAR").lower()
    gamma, shift, degree = (*floats(node, "kernel_params").tolist(), 0.0, 0.0, 0.0)[:3]
    vectors = floats(node, "support_vectors").reshape(count, -1)
    support_vectors = _parameter(op, node, "support_vectors", "support_vectors", vectors, ["reshape", count, -1])
    return kernel(op, kind, x, support_vectors, gamma, shift, degree)
