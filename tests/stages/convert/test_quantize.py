"""Fake quantization: where it rounds, that it trains, and that integers alone predict the same."""

import numpy as np
import onnx
import onnx.parser
import pytest

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvertError, DeriveError
from ortpipe.graph.forms.int8 import to_int8
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.lora import Lora
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

# a residual network: what a sum, a maximum and a mean join stays integer; a BatchNormalization becomes its Conv's scale
NETWORK = """<ir_version: 10, opset_import: ["": OPSET]> g (float[N,2,6,6] x) => (float[N,3] y) {
  a = Conv<pads=[1,1,1,1]>(x, k1, c1) b = BatchNormalization(a, gamma, beta, mean, variance) r = Relu(b)
  c = Conv<pads=[1,1,1,1]>(r, k2) s = Add(c, r) t = Relu(s) p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(t)
  m = GlobalAveragePool(p) v = Dropout(m) f = Flatten(v) d = Dropout(f) h = Gemm<transB=1>(d, w1, b1) e = Tanh(h)
  z = MatMul(e, w2) y = Add(z, b2)
}"""


def network(path, opset=18):
    rng = np.random.default_rng(0)
    shapes = {"k1": (4, 2, 3, 3), "c1": (4,), "gamma": (4,), "beta": (4,), "mean": (4,), "variance": (4,)}
    shapes |= {"k2": (4, 4, 3, 3), "w1": (5, 4), "b1": (5,), "w2": (5, 3), "b2": (3,)}
    model = onnx.parser.parse_model(NETWORK.replace("OPSET", str(opset)))
    arrays = {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["variance"] = np.abs(arrays["variance"]) + np.float32(0.5)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in arrays.items())
    onnx.save(model, path)
    rows = Rows({"x": rng.normal(size=(48, 2, 6, 6)).astype(np.float32)}, rng.normal(size=(48, 3)).astype(np.float32))
    return str(path), Data(rows, test=rows)


def operators(model):
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("opset", [16, 18])
def test_the_int8_model_of_a_trained_one_predicts_what_it_does(tmp_path, opset):
    path, data = network(tmp_path / "a.onnx", opset)
    plain = convert(None, ConvertConfig(OnnxFile(path)), data=data)
    artifact = convert(None, ConvertConfig(OnnxFile(path), quantize="qdq"), data=data)
    assert artifact.facts.parameters == plain.facts.parameters
    losses = AddLossConfig(LOSSES["l2"]())
    trained = train(derive(add_loss(artifact, losses)), TrainConfig(OPTIMIZERS["sgd"](lr=0.001), epochs=2), data=data)
    moved = [n for n, a in artifact.initializers.items() if not np.array_equal(a, trained.initializers[n])]
    assert set(moved) == set(artifact.facts.parameters)
    whole, x = to_int8(trained.model), {"x": data.train.inputs["x"]}
    fake, integers, floats = (Session(model).run(x, ["y"])[0] for model in (trained.model, whole, plain.model))
    assert 0 < np.abs(fake - floats).max() < 0.3
    np.testing.assert_allclose(integers, fake, atol=0.02)  # biases are rounded, too; a step of e is 0.008
    held = {t.name: t.data_type for t in whole.graph.initializer if t.name.endswith("_quantized")}
    assert held == {
        **{f"{name}_quantized": onnx.TensorProto.INT8 for name in ("k1", "k2", "w1", "w2")},
        **{f"{name}_quantized": onnx.TensorProto.INT32 for name in ("b1", "b2", "c1")},
    }
    assert {"BatchNormalization", "MatMul"}.isdisjoint(operators(whole))  # parts of their products


def test_each_product_reads_integers_and_what_joins_them_does_too(tmp_path):
    path, data = network(tmp_path / "a.onnx")
    model = convert(None, ConvertConfig(OnnxFile(path), quantize="qdq"), data=data).model
    makers = {y: node.op_type for node in model.graph.node for y in node.output}
    read = {n.op_type: [makers.get(x) for x in n.input] for n in model.graph.node if "Linear" not in n.op_type}
    pair = "DequantizeLinear"
    assert read["Conv"][:2] == read["MatMul"] == [pair, pair]
    assert read["GlobalAveragePool"] == read["MaxPool"] == [pair]
    first = next(node for node in model.graph.node if node.op_type == "Dropout")
    assert [makers[x] for x in first.input] == [pair]
    assert read["Flatten"] == ["Dropout"]
    assert read["Gemm"][:2] == ["Dropout", pair]  # behind a Dropout they would be cut at its larger numbers
    assert read["BatchNormalization"][0] == "Conv"
    assert read["Tanh"] == ["Gemm"]


LINEAR = """<ir_version: 8, opset_import: ["": 18]> g (KIND[N,3] x) => (KIND[N,3] y)
  <KIND[3] v = {1, 2, 3}, KIND[3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> { y = OPERATOR }"""


@pytest.mark.parametrize(
    ("kind", "operator", "got"),
    [
        ("float", "Mul(x, v)", "no Conv, Gemm, MatMul"),
        ("double", "MatMul(x, w)", "DOUBLE"),
        ("float", "MatMul(x, w)", "no rows"),
    ],
)
def test_what_cannot_be_quantized_is_refused(tmp_path, kind, operator, got):
    onnx.save(onnx.parser.parse_model(LINEAR.replace("KIND", kind).replace("OPERATOR", operator)), tmp_path / "a.onnx")
    ones = np.ones((4, 3), {"float": np.float32, "double": np.float64}[kind])
    source, data = OnnxFile(str(tmp_path / "a.onnx"), task="regression"), Data(Rows({"x": ones}, ones))
    with pytest.raises(ConvertError, match=got):
        convert(None, ConvertConfig(source, quantize="qdq"), data=None if got == "no rows" else data)


def test_a_quantized_file_is_not_rounded_twice(tmp_path):
    path, data = network(tmp_path / "a.onnx")
    artifact = convert(None, ConvertConfig(OnnxFile(path), quantize="qdq"), data=data)
    onnx.save(to_int8(artifact.model), tmp_path / "b.onnx")
    again = ConvertConfig(OnnxFile(str(tmp_path / "b.onnx")), quantize="qdq")
    with pytest.raises(ConvertError, match=r"source\.quantized=float"):
        convert(None, again, data=data)
    read = convert(
        None, ConvertConfig(OnnxFile(str(tmp_path / "b.onnx"), quantized="float"), quantize="qdq"), data=data
    )
    assert {f"{name}_quantized" for name in ("k1", "k2", "w1", "w2")} <= {*read.facts.parameters}


def test_rounded_weights_take_no_adapters_and_the_message_names_both_settings(tmp_path):
    path, data = network(tmp_path / "a.onnx")
    artifact = convert(None, ConvertConfig(OnnxFile(path), quantize="qdq"), data=data)
    with pytest.raises(DeriveError, match=r"read through QuantizeLinear(.|\n)*Leave out .*quantize or adapters"):
        derive(add_loss(artifact, AddLossConfig(LOSSES["l2"]())), DeriveConfig(adapters=Lora(rank=1)))
