"""float16 and bfloat16: the same rules, against the gradient in float32 of the same rounded values.

`test_node_cases.py` compares that gradient, of the same cases, with central differences.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from autodiff.numeric import scalar_loss, weights_of
from autodiff.rules.test_node_cases import CASES, prepared
from differences import slopes
from engines import native
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from plain_session import PlainSession
from sample import few_of_each

# max |half − float32| / max(1, max |float32|): a few roundings of 2⁻¹¹ and 2⁻⁸
HALVES = {
    "float16": (TensorProto.FLOAT16, np.float16, 1e-2),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16, 7e-2),
}
LEFT_OUT = {
    "test_acosh_example-float16": "1 is rounded to the pole",
    "test_reduce_prod_default_axes_keepdims_example-float16": "the product is 5e8",
    "test_sce_NCd1d2d3d4d5_mean_weight-bfloat16": "onnx.reference sums 100 weights in bfloat16, one after another",
    "test_sce_NCd1d2d3d4d5_mean_weight_log_prob-bfloat16": "onnx.reference sums 100 weights in bfloat16 likewise",
}
# bfloat16 came to these operators of the gradient in opset 16, and to Round in 22
NEEDS_16 = ("Clip", "Max", "Min", "Pow", "ReduceMax", "ReduceMin", "Where")


def in_half(graph, dtype, array):
    """Turn a graph of float32 into one of half precision."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = dtype
    for tensor in (*graph.initializer, *(a.t for n in graph.node for a in n.attribute if a.HasField("t"))):
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(array), tensor.name))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = dtype


def cases():
    """Yield two node tests of each operator in float16 and one in bfloat16: the rules treat both types alike."""
    seen = set()
    for name in few_of_each(((case.model.graph.node[0].op_type, name) for name, case in CASES.items()), 2):
        model, feeds, by = prepared(CASES[name], bake=True)
        floats = {n for n, v in feeds.items() if v.dtype == np.float32}
        if not floats or len(floats) < sum(v.dtype.kind == "f" for v in feeds.values()) or "cast" in name:
            continue
        op_type = model.graph.node[0].op_type
        for half, (dtype, array, _) in HALVES.items():
            if half == "bfloat16" and op_type in seen:
                continue
            own = onnx.ModelProto()
            own.CopyFrom(model)
            in_half(own.graph, dtype, array)
            old = model.opset_import[0].version < 16 and op_type in NEEDS_16
            if f"{name}-{half}" in LEFT_OUT or (half == "bfloat16" and (old or op_type == "Mod")):
                continue
            try:
                onnx.checker.check_model(own, full_check=True)
            except onnx.shape_inference.InferenceError:
                continue  # ONNX has no such operator of this type
            seen.update([op_type] if half == "bfloat16" else [])
            yield pytest.param(model, feeds, [n for n in by if n in floats], half, id=f"{name}-{half}")


@pytest.mark.parametrize(("model", "feeds", "by", "half"), list(cases()))
def test_the_gradient_is_that_of_float32_within_the_precision(model, feeds, by, half):
    dtype, array, tolerance = HALVES[half]
    feeds = {k: v.astype(array).astype(np.float32) if v.dtype == np.float32 else v for k, v in feeds.items()}
    with np.errstate(all="ignore"):
        weights = {k: v.astype(array).astype(v.dtype) for k, v in weights_of(model, feeds).items()}
        single = scalar_loss(model, weights)
        own = onnx.ModelProto()
        own.CopyFrom(single)
        in_half(own.graph, dtype, array)
        expected = gradients(single, feeds, by)
        got = gradients(own, {k: v.astype(array) if v.dtype == np.float32 else v for k, v in feeds.items()}, by)
    for name, value in expected.items():
        assert got[name].dtype == array
        limit = tolerance * max(1.0, np.abs(value[np.isfinite(value)]).max(initial=0))
        np.testing.assert_allclose(got[name].astype(np.float32), value, rtol=0, atol=limit)  # nan where it is nan


def gradients(model, feeds, by):
    derived, names = native(model, "check/loss", [], by)
    return dict(zip(names, ReferenceEvaluator(derived).run(list(names.values()), dict(feeds)), strict=True))


NETWORK = """<ir_version: 10, opset_import: ["" : 21]>
 g (float[N,1,6,6] X, int64[N] t) => (float loss)
 <float[4,1,3,3] k = {K}, float[4] c = {0.1, -0.2, 0.3, 0}, float[4] s = {1, 0.5, 2, 1}, float[4] b = {0, 0.1, 0, -0.1},
  float[4] mean = {0.1, 0, 0.2, 0}, float[4] var = {1, 2, 0.5, 1}, float[4,3] w = {W}, float[3] o = {0.1, 0, -0.1}>
 { a = Conv(X, k, c) n = BatchNormalization(a, s, b, mean, var) r = Relu(n) p = MaxPool<kernel_shape=[2, 2]>(r)
   m = GlobalAveragePool(p) f = Flatten(m) z = Gemm(f, w, o) loss = SoftmaxCrossEntropyLoss(z, t) }"""


def test_a_whole_network_in_float16_in_the_runtime():
    rng = np.random.default_rng(0)
    text = NETWORK.replace("{K}", _list(rng.normal(size=36))).replace("{W}", _list(rng.normal(size=12)))
    single, feeds = onnx.parser.parse_model(text), {"X": rng.normal(size=(8, 1, 6, 6)), "t": np.arange(8) % 3}
    half = onnx.parser.parse_model(text)
    in_half(half.graph, TensorProto.FLOAT16, np.float16)
    parameters = ["k", "c", "s", "b", "w", "o"]
    single_feeds, half_feeds = ({**feeds, "X": feeds["X"].astype(t)} for t in (np.float32, np.float16))
    expected = slopes(single, "loss", single_feeds, parameters, step=3e-3)
    derived, names = native(half, "loss", parameters, [])
    got = dict(zip(names, PlainSession(derived).run(half_feeds, list(names.values())), strict=True))
    for name, slope in expected.items():
        np.testing.assert_allclose(got[name], slope, atol=1e-2 * np.abs(slope).max())


def test_a_mean_over_more_than_a_half_can_count():
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float16[A,B] x) => (float16 loss)
     { m = ReduceMean<keepdims=0>(x) loss = Identity(m) }"""
    derived, names = native(onnx.parser.parse_model(text), "loss", [], ["x"])
    [got] = PlainSession(derived).run({"x": np.ones((300, 300), np.float16)}, [names["x"]])  # 90,000 > 65,504
    np.testing.assert_allclose(got, np.full((300, 300), 1 / 90_000), rtol=5e-3)


def _list(values):
    return "{" + ", ".join(f"{v:.3f}" for v in values) + "}"
