"""ai.onnx.ml operators, rewritten in standard operators: weights of linear models and SVMs become initializers."""

import math
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.origins import mark
from ortpipe.graph.core.rewrite import Rewrite, rewrite
from ortpipe.stages.convert.dialects.kernels import couple, kernel, scores_of_pairs, votes_of_pairs

ML = "ai.onnx.ml"
FLOAT = ir.DataType.FLOAT
Steps = list[list[Any]]  # transformations in a parameter's origin
ITERATED = 5e-3  # tolerance of the libsvm iteration in onnxruntime; the rewrite computes its limit
LABELS = ("classlabels_strings", "classlabels_ints")  # attributes
RIGID = ("SVM", "TreeEnsemble")  # prefixes of operators that keep all their numbers in attributes
TREES = (
    "A model must have weights that gradients can train; trees compare inputs with constants.",
    "Convert a linear model or an MLP; the predictions of the trees can be its labels.",
)
SCORES = (
    "Scores must agree with the labels: in onnxruntime those of an SVMClassifier of two classes do so only with "
    "probabilities, or where raw_scores negates them.",
    "Export an SVC with skl2onnx's option raw_scores=True, one with probability=True without, or give scikit-learn's "
    "estimator itself (convert=sklearn).",
)


def as_float(op: Builder, x: ir.Value | None) -> ir.Value:
    """Return numbers as float32, the type that these operators compute in."""
    assert x is not None
    return x if x.dtype == FLOAT else op.Cast(x, to=FLOAT)


def floats(node: ir.Node, name: str) -> np.ndarray:
    """Return an attribute's numbers; none if it is missing."""
    return np.array(node.attributes.get_floats(name, ()), np.float32)


def linear_regressor(op: Builder, node: ir.Node) -> list[ir.Value]:
    """LinearRegressor: x · coefficientsᵀ + intercepts."""
    targets = node.attributes.get_int("targets", 1)
    if (transform := node.attributes.get_string("post_transform", "NONE")) != "NONE":
        raise _unsupported(node, f"post_transform={transform}")
    weight = floats(node, "coefficients").reshape(targets, -1)
    return [_scores(op, node, weight, floats(node, "intercepts"), [["reshape", *weight.shape]])]


def linear_classifier(op: Builder, node: ir.Node) -> list[ir.Value]:
    """LinearClassifier: label and probabilities; two opposite rows become one, so that training keeps them opposite."""
    classes = classes_of(node)
    weight = floats(node, "coefficients")
    bias = floats(node, "intercepts")
    transform = node.attributes.get_string("post_transform", "NONE")
    x = node.inputs[0]
    rows = weight.reshape(-1, query.width(x) or weight.size // len(classes))
    steps: Steps = [["reshape", *rows.shape]]
    bias = bias if bias.size else np.zeros(len(rows), np.float32)
    if len(rows) != len(classes):  # onnxruntime adds the second class by its own rule
        raise _unsupported(node, f"coefficients for {len(rows)} scores and {len(classes)} classes")
    if transform not in ("LOGISTIC", "NONE", "SOFTMAX"):
        raise _unsupported(node, f"post_transform={transform}")
    opposite = len(rows) == 2 and np.array_equal(rows[0], -rows[1]) and np.array_equal(bias[0], -bias[1])
    if opposite and transform != "SOFTMAX":
        rows, bias = rows[-1:], bias[-1:]
        steps = [*steps, ["opposite"]]
    scores = _scores(op, node, rows, bias, steps)
    if transform != "NONE":
        scores = op.Softmax(scores, axis=-1) if transform == "SOFTMAX" else op.Sigmoid(scores)
    if len(rows) < len(classes):
        scores = op.Concat(1 - scores if transform == "LOGISTIC" else op.Neg(scores), scores, axis=-1)
    values = np.array(classes, dtype=str if isinstance(classes[0], str) else np.int64)
    return [op.Gather(op.const(values), op.ArgMax(scores, axis=1, keepdims=0)), scores]


def scaler(op: Builder, node: ir.Node) -> list[ir.Value]:
    """Scaler: (x − offset) · scale, as constants."""
    return [(as_float(op, node.inputs[0]) - op.const(floats(node, "offset"))) * op.const(floats(node, "scale"))]


def normalizer(op: Builder, node: ir.Node) -> list[ir.Value]:
    """Normalizer: x / Σ|x|, x / √Σx² or x / max x, by row; the maximum keeps its sign, as in onnxruntime."""
    x = as_float(op, node.inputs[0])
    match node.attributes.get_string("norm", "MAX"):
        case "MAX":
            norm = op.ReduceMax(x, [-1])
        case "L1":
            norm = op.ReduceSum(op.Abs(x), [-1])
        case "L2":
            norm = op.Sqrt(op.ReduceSum(x * x, [-1]))
        case norm_name:
            raise _unsupported(node, f"norm={norm_name}")
    return [x / op.Where(op.Equal(norm, 0), 1, norm)]  # like the operator, keep a row of zeros


def array_feature_extractor(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """ArrayFeatureExtractor: x[…, columns] with constant columns, or columns of a weight table chosen by the rows.

    It is kept for labels, and behind operators that cannot be trained.
    """
    x, index, columns = *node.inputs, query.constant(node.inputs[1])
    if x is not None and index is not None and x.is_initializer() and columns is None:
        if x.dtype not in query.FLOATS or x.shape is None or len(x.shape) != 2:
            return None
        return None if query.float_initializers(op.graph, index) else [op.Gather(x, op.Reshape(index, [-1]), axis=-1)]
    if x is None or columns is None or query.constant(x) is not None:
        return None
    producers = [value.producer() for value in query.ancestors([x])]
    if any(producer is not None and producer.op_type.startswith(RIGID) for producer in producers):
        return None
    return [op.Gather(x, op.const(columns.ravel().astype(np.int64)), axis=-1)]


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
    values, name = (_kernel_values(op, node, x, count), "dual_coefficient") if count else (x, "coefficient")
    weight = _parameter(op, node, name, "coefficients", dual[:, None], ["reshape", len(dual), 1])
    return [op.Gemm(values, weight, intercept)]


def svm_classifier(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """SVMClassifier: Σ coefficients · K(x, their support vectors) + rho for each pair of classes, and the most votes.

    Probabilities are Platt's: σ(a·score + b) of each pair's second class, coupled for several classes. The operator is
    kept where the values of two classes contradict the labels: onnxruntime's scores do, unless they are negated next.
    """
    sizes, coefficients = node.attributes.get_ints("vectors_per_class", ()), floats(node, "coefficients")
    labels = [label for name in LABELS if name in node.attributes for label in node.attributes[name].value]
    platt = floats(node, "prob_a"), floats(node, "prob_b")
    classes, count = len(sizes), sum(sizes)
    is_plain = node.attributes.get_string("post_transform", "NONE") == "NONE" and len(labels) == classes and count
    if not is_plain or (classes == 2 and bool(platt[0].size) == _is_negated(node.outputs[1])):
        return None
    values = _kernel_values(op, node, as_float(op, node.inputs[0]), count)
    shape = classes - 1, count
    weight = _parameter(op, node, "dual_coefficient", "coefficients", coefficients.reshape(shape), ["reshape", *shape])
    intercept = _parameter(op, node, "intercept", "rho", floats(node, "rho"))
    scores = scores_of_pairs(op, values, weight, intercept, sizes)
    votes = votes_of_pairs(op, 1 - op.Cast(op.Greater(scores, 0), to=FLOAT), classes)  # NaN is for the second one
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


RULES: dict[str, Rewrite] = {
    "ArrayFeatureExtractor": array_feature_extractor,
    "Binarizer": binarizer,
    "FeatureVectorizer": feature_vectorizer,
    "Imputer": imputer,
    "LinearClassifier": linear_classifier,
    "LinearRegressor": linear_regressor,
    "Normalizer": normalizer,
    "OneHotEncoder": one_hot_encoder,
    "SVMClassifier": svm_classifier,
    "SVMRegressor": svm_regressor,
    "Scaler": scaler,
}


def without_zip_map(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[int | str, ...] | None]:
    """Return the model with each ZipMap (one dict per row) replaced by its input tensor, and the ZipMap's labels."""
    converted, classes = onnx.ModelProto(), None
    converted.CopyFrom(model)
    graph = converted.graph
    for node in graph.node:
        if node.domain != ML or node.op_type != "ZipMap":
            continue
        labels = [a for a in node.attribute if a.name.startswith("classlabels")]
        classes = tuple(v.decode() if isinstance(v, bytes) else int(v) for a in labels for v in (*a.strings, *a.ints))
        output_type = onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, ["N", len(classes)])
        for output in graph.output:
            if output.name == node.output[0]:
                output.CopyFrom(output_type)
        node.CopyFrom(onnx.helper.make_node("Identity", node.input, node.output, name=node.name))
    return converted, classes


def check_trees(model: onnx.ModelProto) -> None:
    """Reject a file of trees without weights beside them: parsing their numbers may take all of the memory."""
    nodes = model.graph.node
    trees = [node for node in nodes if node.op_type.startswith("TreeEnsemble")]
    weighted = [a for node in nodes if node.op_type.startswith(("Constant", "Linear", "SVM")) for a in node.attribute]
    tensors = [*model.graph.initializer, *(attribute.t for attribute in weighted)]
    is_weighted = any(attribute.floats for attribute in weighted) or any(
        tensor.data_type in query.FLOATS and math.prod(tensor.dims) > 1 for tensor in tensors
    )
    if trees and not is_weighted:
        rule, fix = TREES
        raise ConvertError(rule, got=f"{ML}.{trees[0].op_type} at node {trees[0].name!r}", fix=fix)


def standardize(graph: ir.Graph) -> float:
    """Rewrite ai.onnx.ml operators in place; reject those without a rule between weights and float outputs.

    Returns:
        The tolerance of onnxruntime's own operators, relative to the largest prediction.
    """
    iterated = any(node.op_type == "SVMClassifier" and "prob_a" in node.attributes for node in graph)
    rewrite(graph, RULES, ML)
    floats = [output for output in graph.outputs if output.dtype in query.FLOATS]
    for output in floats:
        producers = {value: value.producer() for value in query.ancestors([output])}
        remaining = {value: node for value, node in producers.items() if node is not None and node.domain == ML}
        fixed_node = next((node for node in remaining.values() if node.op_type.startswith(RIGID)), None)
        blocking = next((node for value, node in remaining.items() if query.float_initializers(graph, value)), None)
        scores = fixed_node is not None and fixed_node.op_type == "SVMClassifier"  # shape inference does not support it
        must_rewrite = blocking is not None or not any(query.float_initializers(graph, o) for o in floats)
        if fixed_node is not None and (must_rewrite or scores):
            if not scores and not fixed_node.op_type.startswith("TreeEnsemble"):
                raise _unsupported(fixed_node, "one class, or a transformed result")
            rule, fix = SCORES if scores else TREES
            raise ConvertError(rule, got=f"{ML}.{fixed_node.op_type} at node {fixed_node.name!r}", fix=fix)
        if blocking is not None:
            raise ConvertError(
                "Only standard operators may stand between weights and prediction.",
                got=f"{ML}.{blocking.op_type} at node {blocking.name!r}",
                fix=f"End the graph in front of it: name the value there with {{at}}prediction. ortpipe rewrites "
                f"{', '.join(RULES)} and ZipMap.",
            )
    return ITERATED if iterated else 0.0


def classes_in(graph: ir.Graph) -> tuple[int | str, ...] | None:
    """Return the class labels in a graph: those of a classifier, or of the table that the label output selects from."""
    for node in reversed(graph):  # the last classifier is the model's, earlier ones are its parts
        if node.domain == ML and node.op_type in ("LinearClassifier", "SVMClassifier"):
            return classes_of(node)
        if node.op_type in ("ArrayFeatureExtractor", "Gather"):
            labels, index = query.constant(node.inputs[0]), node.inputs[1]
            if labels is not None and index is not None and (maker := index.producer()) and maker.op_type == "ArgMax":
                texts = (v.decode() if isinstance(v, bytes) else v for v in labels.ravel().tolist())
                return tuple(v if isinstance(v, str) else int(v) for v in texts)
    return None


def classes_of(node: ir.Node) -> tuple[int | str, ...]:
    """Return the labels of a LinearClassifier or SVMClassifier."""
    for name in LABELS:
        if name in node.attributes and len(node.attributes[name].value):
            return tuple(node.attributes[name].value)
    raise _unsupported(node, "no class labels")


def _scores(op: Builder, node: ir.Node, weight: np.ndarray, bias: np.ndarray, steps: Steps) -> ir.Value:
    """Return x · weightᵀ + bias; `steps` transform the coefficients to the weight, all but the first to the bias."""
    coefficient = _parameter(op, node, "coefficient", "coefficients", weight.T, *steps, ["transpose"])
    inputs = [as_float(op, node.inputs[0]), coefficient]
    if bias.size:
        inputs.append(_parameter(op, node, "intercept", "intercepts", bias, *steps[1:]))
    return op.Gemm(*inputs)


def _unsupported(node: ir.Node, why: str) -> ConvertError:
    return ConvertError(
        f"{ML}.{node.op_type} is supported in its common forms only.",
        got=f"node {node.name!r}: {why}",
        fix="End the graph in front of it: name the value there with {at}prediction.",
    )


def _is_negated(scores: ir.Value) -> bool:
    """Return whether all readers of scores negate them, as in skl2onnx's graphs with the option raw_scores."""
    readers = scores.consumers()
    if [node.op_type for node in readers] == ["Cast"]:
        readers = readers[0].outputs[0].consumers()
    factors = [query.constant(v) for node in readers if node.op_type == "Mul" for v in node.inputs]
    signs = [bool((factor < 0).all()) for factor in factors if factor is not None]
    return not scores.is_graph_output() and len(readers) == len(signs) > 0 and all(signs)


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
