"""Quantized models as float models: against the runtime's own integer kernels, and derivable."""

import numpy as np
import onnx
import onnx.compose
import onnx.parser
import onnx_ir as ir
import pytest
from autodiff.numeric import worst_error
from engines import native

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvertError
from ortpipe.graph.core.check import finish, inferred
from ortpipe.graph.core.origins import marked, put
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.dialects import read_dialects
from ortpipe.stages.convert.reading.graph_settings import Given
from ortpipe.stages.convert.stage import convert

rng, more = np.random.default_rng(0), np.random.default_rng(1)
QUANTIZED = "q = QuantizeLinear(x, xs, xz) "
FLOATS = " y = DequantizeLinear(z, ys, yz)"
BASE = {"xs": np.float32(0.02), "xz": np.uint8(130), "ys": np.float32(0.03), "yz": np.uint8(110)}
# Weights of int8 have 7 bits: without VNNI, x86's kernels add two products with uint8 in 16 bits, which may overflow.
MATRIX = {"w": rng.integers(-64, 64, (6, 4)).astype(np.int8), "ws": np.float32(0.01), "wz": np.int8(3)}
KERNEL = {"w": rng.integers(0, 256, (4, 2, 3, 3)).astype(np.uint8), "ws": np.float32(0.01), "wz": np.uint8(128)}
BIAS = {"b": rng.integers(-900, 900, 4).astype(np.int32)}
ROWS, IMAGES = "float[N,6] x", "float[N,2,6,6] x"
PER_CHANNEL = {"ws": np.array([0.01, 0.02, 0.015, 0.005], np.float32), "wz": np.zeros(4, np.int8)}
LSTM = {
    "w": rng.integers(0, 256, (1, 6, 12)).astype(np.uint8),
    "ws": np.array([0.01], np.float32),
    "wz": np.array([128], np.uint8),
    "r": rng.integers(0, 256, (1, 3, 12)).astype(np.uint8),
    "rs": np.array([0.01], np.float32),
    "rz": np.array([128], np.uint8),
}


def of_one(op):
    return ROWS, f"{QUANTIZED} z = com.microsoft.{op}(q, xs, xz, ys, yz) {FLOATS}", BASE


def of_two(op):
    both = "r = QuantizeLinear(x, ys, yz)"
    return ROWS, f"{QUANTIZED} {both} z = com.microsoft.{op}(q, xs, xz, r, ys, yz, ys, yz) {FLOATS}", BASE


CASES = {  # what → (input, nodes, initializers)
    "pair": (ROWS, f"{QUANTIZED} y = DequantizeLinear(q, xs, xz)", BASE),
    "another scale": (ROWS, f"{QUANTIZED} y = DequantizeLinear(q, ys, yz)", BASE),
    "signed": (ROWS, f"{QUANTIZED} y = DequantizeLinear(q, xs, xz)", {**BASE, "xz": np.int8(-5)}),
    "moved": (
        IMAGES,
        f"{QUANTIZED} p = MaxPool<kernel_shape=[2,2]>(q) t = Transpose<perm=[0,2,3,1]>(p) c = Concat<axis=3>(t, t) "
        "y = DequantizeLinear(c, xs, xz)",
        BASE,
    ),
    "per channel": (
        IMAGES,
        f"{QUANTIZED} y = DequantizeLinear(q, xs, xz)",
        {"xs": np.array([0.02, 0.03], np.float32), "xz": np.array([120, 130], np.uint8)},
    ),
    "weights": (
        ROWS,
        f"{QUANTIZED} f = DequantizeLinear(q, xs, xz) v = DequantizeLinear<axis=1>(w, ws, wz) y = MatMul(f, v)",
        {**BASE, **MATRIX, **PER_CHANNEL},
    ),
    "weights of a computed scale": (
        ROWS,
        f"{QUANTIZED} f = DequantizeLinear(q, xs, xz) s = Abs(ws) i = QuantizeLinear<axis=0>(v, s, wz) "
        "d = DequantizeLinear<axis=0>(i, s, wz) y = Gemm<transB=1>(f, d)",
        {**BASE, **PER_CHANNEL, "v": more.normal(0, 0.5, (4, 6)).astype(np.float32)},
    ),
    "embedding": (
        "int64[N,3] x",
        "g = Gather(w, x) y = DequantizeLinear(g, ws, wz)",
        MATRIX,
    ),
    "conv": (
        IMAGES,
        f"{QUANTIZED} z = QLinearConv<pads=[1,1,1,1]>(q, xs, xz, w, ws, wz, ys, yz, b) {FLOATS}",
        {**BASE, **KERNEL, **BIAS},
    ),
    "conv per channel": (
        IMAGES,
        f"{QUANTIZED} z = QLinearConv(q, xs, xz, w, ws, wz, ys, yz, b) {FLOATS}",
        {**BASE, **BIAS, **PER_CHANNEL, "w": rng.integers(-64, 64, (4, 2, 3, 3)).astype(np.int8)},
    ),
    "mat_mul": (ROWS, f"{QUANTIZED} z = QLinearMatMul(q, xs, xz, w, ws, wz, ys, yz) {FLOATS}", {**BASE, **MATRIX}),
    "gemm": (
        ROWS,
        f"{QUANTIZED} z = com.microsoft.QGemm(q, xs, xz, w, ws, wz, b, ys, yz) {FLOATS}",
        {**BASE, **MATRIX, **BIAS},
    ),
    "gemm to floats": (
        ROWS,
        f"{QUANTIZED} y = com.microsoft.QGemm<transB=1>(q, xs, xz, w, ws, wz, b)",
        {**BASE, **MATRIX, **BIAS, "w": MATRIX["w"].T.copy()},
    ),
    "add": of_two("QLinearAdd"),
    "mul": of_two("QLinearMul"),
    "leaky": of_one("QLinearLeakyRelu<alpha=0.2>"),
    "sigmoid": of_one("QLinearSigmoid"),
    "concat": (
        ROWS,
        f"{QUANTIZED} z = com.microsoft.QLinearConcat<axis=1>(ys, yz, q, xs, xz, q, xs, xz) {FLOATS}",
        BASE,
    ),
    "pool": (
        IMAGES,
        f"{QUANTIZED} z = com.microsoft.QLinearAveragePool<kernel_shape=[2,2]>(q, xs, xz, ys, yz) {FLOATS}",
        BASE,
    ),
    "global pool": (
        IMAGES,
        f"{QUANTIZED} z = com.microsoft.QLinearGlobalAveragePool(q, xs, xz, ys, yz) {FLOATS}",
        BASE,
    ),
    "dynamic": (
        ROWS,
        "q, s, o = DynamicQuantizeLinear(x) i = MatMulInteger(q, w, o, wz) f = Cast<to=1>(i) k = Mul(s, ws) "
        "y = Mul(f, k)",
        MATRIX,
    ),
    "dynamic conv": (
        IMAGES,
        "q, s, o = DynamicQuantizeLinear(x) i = ConvInteger<pads=[1,1,1,1]>(q, w, o, wz) f = Cast<to=1>(i) "
        "k = Mul(s, ws) y = Mul(f, k)",
        KERNEL,
    ),
    "dynamic fused": (
        ROWS,
        "y = com.microsoft.DynamicQuantizeMatMul(x, w, ws, wz, v)",
        {**MATRIX, "v": np.ones(4, np.float32)},
    ),
    "integers to floats": (
        ROWS,
        "q, s, o = DynamicQuantizeLinear(x) y = com.microsoft.MatMulIntegerToFloat(q, w, s, ws, o, wz)",
        MATRIX,
    ),
    "lstm": (
        "float[5,N,6] x",
        'h, y = com.microsoft.DynamicQuantizeLSTM<hidden_size=3>(x, w, r, "", "", "", "", "", ws, wz, rs, rz)',
        LSTM,
    ),
    "nhwc": (
        "float[N,6,6,2] x",
        f"{QUANTIZED} c = com.microsoft.QLinearConv<channels_last=1, pads=[1,1,1,1]>(q, xs, xz, w, ws, wz, ys, yz, b) "
        "m = com.microsoft.NhwcMaxPool<kernel_shape=[2,2]>(c) z = com.microsoft.QLinearAveragePool"
        f"<kernel_shape=[2,2], channels_last=1>(m, ys, yz, ys, yz) {FLOATS}",
        {**BASE, **KERNEL, **BIAS},
    ),
    "where": (
        ROWS,
        f"o = Neg(x) r = QuantizeLinear(x, ys, yz) k = Greater(x, o) {QUANTIZED} "
        f"z = com.microsoft.QLinearWhere(k, q, xs, xz, r, ys, yz, ys, yz) {FLOATS}",
        BASE,
    ),
    "attention": (
        "float[N,3,6] x",
        "q, s, o = DynamicQuantizeLinear(x) "
        'y = com.microsoft.QAttention<num_heads=2, unidirectional=1>(q, w, b, s, ws, "", o, wz)',
        {**MATRIX, "w": more.integers(-64, 64, (6, 12)).astype(np.int8), "b": np.ones(12, np.float32)},
    ),
    "mat_mul of 4 bits": (
        "float[N,40] x",
        "y = com.microsoft.MatMulNBits<K=40, N=3, bits=4, block_size=16>(x, w, ws, wz)",
        {
            "w": more.integers(0, 256, (3, 3, 8)).astype(np.uint8),
            "ws": more.uniform(0.01, 0.1, 9).astype(np.float32),
            "wz": more.integers(0, 256, 6).astype(np.uint8),
        },
    ),
}
WITHIN = {"lstm": 0.03}  # its kernel rounds what it reads in every step


def parsed(name):
    graph, nodes, held = CASES[name]
    rank = 3 if name == "embedding" else graph.count(",") + 1
    width = "[A,N,C]" if name == "lstm" else f"[{','.join('NABC'[:rank])}]"
    text = f'<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]> g ({graph}) => (float{width} y) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in held.items())
    return model


def rows(model):
    shape = [d.dim_value or 5 for d in model.graph.input[0].type.tensor_type.shape.dim]
    if model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.INT64:
        return {"x": rng.integers(0, 6, shape)}
    x = rng.normal(size=shape).astype(np.float32) * 2
    x.ravel()[:8] = np.array([0.01, 0.03, 0.05, -0.01, -0.03, 9, -9, 0], np.float32)  # halves, and out of range
    return {"x": x}


def as_floats(model, mode="fake"):
    own = ir.from_proto(inferred(model))
    assert read_dialects(own, mode).notes
    return own, finish(own)


@pytest.mark.parametrize("name", CASES)
def test_a_quantized_operator_gives_what_the_runtimes_integers_give(name):
    model = parsed(name)
    before = model.SerializeToString()
    _, written = as_floats(model)
    assert model.SerializeToString() == before
    kinds = {t.data_type for t in written.graph.initializer}
    assert kinds <= {onnx.TensorProto.FLOAT}
    assert {n.domain for n in written.graph.node} == {""}
    feeds = rows(model)
    [got], [want] = Session(written).run(feeds), Session(model).run(feeds)
    off = np.abs(got - want)
    assert off.max() <= WITHIN.get(name, 1.01 * BASE["ys"])  # one step: sums halfway between two
    assert name in WITHIN or (off > 1e-6 * max(1.0, np.abs(want).max())).mean() <= 0.06


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("embedding", "lstm")])
def test_without_rounding_the_gradient_is_the_slope(name):
    model = parsed(name)
    _, written = as_floats(model, "float")
    off_the_corner = {"x": rows(model)["x"] + np.float32(0.004)}
    assert worst_error(written, off_the_corner, step=1e-4) < 1e-6


def test_rounding_passes_the_gradient_inside_the_range_and_stops_it_outside():
    _, written = as_floats(parsed("pair"))
    text = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[N,A] y) => (float l) { l = ReduceSum<keepdims=0>(y) }'
    )
    merged = onnx.compose.merge_models(written, text, [("y", "y")], prefix2="")
    derived, names = native(merged, "l", [], ["x"])
    x = np.array([[0.013, 2.49, 2.51, -2.59, -2.61, 100]], np.float32)
    [gradient] = Session(derived).run({"x": x}, [names["x"]])
    assert gradient.tolist() == [[1, 1, 0, 1, 0, 0]]


@pytest.mark.parametrize(
    "name",
    ["weights", "conv", "conv per channel", "mat_mul", "gemm", "dynamic", "lstm", "embedding", "mat_mul of 4 bits"],
)
def test_what_was_integers_goes_back_to_the_same_integers(name):
    model = parsed(name)
    own, _ = as_floats(model)
    held, origins = CASES[name][2], marked(own.graph)
    assert sorted(origins) == sorted({"w", "b", "r"} & set(held))
    for parameter, origin in origins.items():
        integers, floats = held[origin["initializer"]], own.graph.initializers[parameter].const_value.numpy()
        np.testing.assert_array_equal(put(integers, floats, origin["transform"], held.__getitem__), integers)


def test_convert_says_what_became_of_a_quantized_file_and_allows_for_its_rounding():
    x = rng.normal(size=(6, 6)).astype(np.float32)
    artifact = convert(parsed("mat_mul"), data=Data(Rows({"x": x}, np.zeros((6, 4)))))
    assert artifact.facts.parameters == ("w",)
    assert "still rounds activations" in artifact.facts.lineage[0]["notes"][0]


def test_the_rounding_in_each_step_of_a_quantized_lstm_is_the_reason_by_name():
    data = Data(Rows({"x": rng.normal(size=(6, 5, 6)).astype(np.float32)}, np.zeros(6)))
    config = ConvertConfig(Given(task="regression"), tolerance=1e-6)
    with pytest.raises(ConvertError, match=r"tolerance 1e-06(.|\n)*DynamicQuantizeLSTM rounds its input and state"):
        convert(parsed("lstm"), config, data=data)


def test_an_operator_that_reads_integers_and_does_more_than_move_them_is_refused():
    model = parsed("pair")
    model.graph.node.insert(1, onnx.helper.make_node("ArgMax", ["q"], ["k"]))
    with pytest.raises(ConvertError, match=r"ArgMax(.|\n)*reads the integers of 'q'"):
        as_floats(model)


def test_without_rounding_a_relu_that_is_in_the_bounds_of_integers_stays():
    held = {**BASE, **MATRIX, "yz": np.uint8(0)}  # what onnxruntime's quantizer makes of Relu(MatMul(x, w))
    text = f"{QUANTIZED} z = QLinearMatMul(q, xs, xz, w, ws, wz, ys, yz) {FLOATS}"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g (float[N,6] x) => (float[N,4] y) {{ {text} }}'
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in held.items())
    _, written = as_floats(model, "float")
    feeds = rows(model)
    [got], [want] = Session(written).run(feeds), Session(model).run(feeds)
    assert (want == 0).any()
    np.testing.assert_allclose(got, want, atol=2 * BASE["ys"])
