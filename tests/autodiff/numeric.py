"""The one numerical checker: a graph's gradients by the native engine against central differences, in float64."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from engines import native
from fuzz.reference import ConvTranspose
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case import base
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import op_pool_common
from plain_session import PlainSession

STEP = 1e-6
FLOAT = TensorProto.DOUBLE


def reference(model: onnx.ModelProto) -> ReferenceEvaluator:
    """Return onnx's evaluator, which mixes up the groups of a ConvTranspose; ours of that operator does not."""
    return ReferenceEvaluator(model, new_ops=[ConvTranspose])


def in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose float32 and float16 inputs, outputs, initializers and constants are float64."""
    own = onnx.ModelProto()
    own.CopyFrom(model)
    _graph_in_double(own.graph)
    return own


def _graph_in_double(graph: onnx.GraphProto) -> None:
    narrow = (TensorProto.FLOAT, TensorProto.FLOAT16)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in narrow:
            value.type.tensor_type.elem_type = FLOAT
    single = {node.input[2] for node in graph.node if node.op_type == "Resize" and len(node.input) > 2}
    for tensor in graph.initializer:
        if tensor.data_type in narrow and tensor.name not in single:  # scales are float32 whatever the data is
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _graph_in_double(attribute.g)
            if attribute.HasField("t") and attribute.t.data_type in narrow:
                array = numpy_helper.to_array(attribute.t).astype(np.float64)
                attribute.t.CopyFrom(numpy_helper.from_array(array, attribute.t.name))
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i in narrow:
                attribute.i = FLOAT


def scalar_loss(model: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Return the model with one output, loss = Σ weights · output over these outputs, in the weights' type."""
    own = onnx.ModelProto()
    own.CopyFrom(model)
    graph, terms = own.graph, []
    for name, array in weights.items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(array), f"check/{name}/weight"))
        graph.node.append(helper.make_node("Mul", [name, f"check/{name}/weight"], [f"check/{name}/product"]))
        graph.node.append(helper.make_node("ReduceSum", [f"check/{name}/product"], [f"check/{name}/sum"], keepdims=0))
        terms.append(f"check/{name}/sum")
    graph.node.append(helper.make_node("Sum", terms, ["check/loss"]))
    del graph.output[:]
    dtype = helper.np_dtype_to_tensor_dtype(next(iter(weights.values())).dtype)
    graph.output.append(helper.make_tensor_value_info("check/loss", dtype, []))
    return own


def weights_of(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a different weight for every element of every float output."""
    rng = np.random.default_rng(0)
    floats = {FLOAT: np.float64, TensorProto.FLOAT: np.float32}
    outputs = zip(model.graph.output, reference(model).run(None, dict(feeds)), strict=True)
    types = [(o.name, value, floats.get(o.type.tensor_type.elem_type)) for o, value in outputs]
    return {name: rng.uniform(0.5, 1.5, np.shape(v)).astype(dtype) for name, v, dtype in types if dtype is not None}


def worst_error(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    only: tuple[str, ...] = (),
    step: float = STEP,
    double: bool = True,
) -> float:
    """Return the largest |derived − difference| / max(1, |difference|) over float inputs, NaN where one is.

    Each input moves along a random direction, all its elements at once, each by another length: two runs hold every
    element of its gradient against the difference. The loss weighs every output element differently, so that swapped
    or misplaced elements are seen. Forward and gradient graphs run in onnx.reference; without `double` in float32, for
    what has no float64, with a coarser step.
    """
    rng = np.random.default_rng(0)
    if double:
        model = in_double(model)
        feeds = {k: v.astype(np.float64) if v.dtype in (np.float32, np.float16) else v for k, v in feeds.items()}
    loss = scalar_loss(model, weights_of(model, feeds))
    dtype = FLOAT if double else TensorProto.FLOAT
    inputs = [
        i.name for i in loss.graph.input if i.type.tensor_type.elem_type == dtype and (not only or i.name in only)
    ]
    derived, names = native(loss, "check/loss", [], inputs)
    gradient_names = [o.name for o in derived.graph.output]
    gradients = dict(zip(gradient_names, reference(derived).run(None, dict(feeds)), strict=True))
    forward = reference(loss)
    errors = [0.0]
    for name in inputs:
        value = feeds[name]
        direction = (rng.choice([-1, 1], value.shape) * rng.uniform(0.5, 1, value.shape)).astype(value.dtype)
        gradient = gradients[names[name]] if name in names else np.zeros_like(value)
        assert gradient.shape == value.shape
        if not value.size:
            continue
        moved = [value + sign * step * direction for sign in (1, -1)]
        up, down = (float(np.asarray(forward.run(None, {**feeds, name: v})[0]).item()) for v in moved)
        difference = (up - down) / (2 * step)
        errors.append(abs(float(np.sum(gradient * direction)) - difference) / max(1.0, abs(difference)))
    return float(np.max(errors))


def runtime_error(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> float:
    """Return the largest |onnxruntime − onnx.reference| / max(1, |reference|) over a gradient model's float32 outputs.

    The loss is the sum of the model's float outputs; gradients are those of its float inputs.
    """
    outputs = {o.name: np.float32(1) for o in model.graph.output if o.type.tensor_type.elem_type == TensorProto.FLOAT}
    loss = in_single(scalar_loss(model, outputs))
    inputs = [i.name for i in loss.graph.input if i.type.tensor_type.elem_type == TensorProto.FLOAT]
    derived, _ = native(loss, "check/loss", [], inputs)
    expected = reference(derived).run(None, dict(feeds))
    got = PlainSession(derived).run(dict(feeds))
    return max(
        float(np.max(np.abs(g - e) / np.maximum(1, np.abs(e)), initial=0)) for g, e in zip(got, expected, strict=True)
    )


def in_single(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a scalar loss over a float32 model in float32 (`scalar_loss` weighs in float64)."""
    for tensor in model.graph.initializer:
        if tensor.name.startswith("check/"):
            array = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    return model


@functools.cache
def every_node_case() -> tuple[TestCase, ...]:
    """Return ONNX's own node tests; the outputs of pooling, which loops over volumes would make for 8 s, are zeros."""

    def zeros(padded, x_shape, _kernel, _strides, places, *_, **__):
        return np.zeros([*x_shape[:2], *places], padded.dtype)

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # making the cases overflows on purpose
        patch.setattr(op_pool_common, "pool", zeros)
        patch.setattr(base, "process_snippet", lambda *_: ("", ""))  # for ONNX's documentation
        return tuple(collect_testcases(None))


def node_cases(kinds: tuple[str, ...], left_out: Mapping[str, str]) -> list[TestCase]:
    """Return ONNX's own node tests of these operators, but for those left out."""
    return [
        case
        for case in every_node_case()
        if case.model is not None
        and case.model.graph.node[0].op_type in kinds
        and "_expanded" not in case.name
        and case.name not in left_out
    ]
