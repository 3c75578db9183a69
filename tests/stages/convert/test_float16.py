"""float16 and bfloat16 files, kept or made float32."""

import numpy as np
import onnx
import onnx.parser
import pytest

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConfigError
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.restore import into_onnx
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float16[N,3] x) => (float16[N,2] y) {
  two = Constant<value_float = 2.0>() c = Cast<to=10>(two) h = MatMul(x, w) k = Cast<to=10>(h)
  t = Constant<value = bool {1}>()
  b = If<then_branch = yes () => (float16[N,2] p) { p = Mul(k, c) },
         else_branch = no () => (float16[N,2] q) { q = Neg(k) }>(t)
  y = Relu(b) }"""
x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float16)
w = np.random.default_rng(1).normal(size=(3, 2)).astype(np.float16)


def saved(tmp_path, kind="float16"):
    number = {"float16": 10, "bfloat16": 16}[kind]
    model = onnx.parser.parse_model(TEXT.replace("float16", kind).replace("to=10", f"to={number}"))
    model.graph.initializer.append(onnx.helper.make_tensor("w", number, w.shape, w.ravel().astype(float)))
    onnx.save(model, tmp_path / "model.onnx")
    return str(tmp_path / "model.onnx")


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_a_file_of_halves_keeps_its_types_or_becomes_one_of_float32(tmp_path, dtype):
    config = ConvertConfig(OnnxFile(saved(tmp_path), dtype=dtype, task="regression"))
    rows = Rows({"x": x.astype(np.float32)}, np.zeros((8, 2)))
    artifact = convert(None, config, data=Data(rows))
    kind = onnx.TensorProto.FLOAT if dtype else onnx.TensorProto.FLOAT16
    graph = artifact.model.graph
    assert {t.data_type for t in graph.initializer} == {graph.input[0].type.tensor_type.elem_type} == {kind}
    assert (artifact.facts.lineage[0]["notes"][0].startswith("reads float16")) == (dtype is not None)
    derived = derive(add_loss(artifact, AddLossConfig(LOSSES["l2"]())))
    assert derived.facts.gradients == {"w": "w_grad"}


def test_the_float_type_of_an_estimator_is_none_of_a_file(tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)built from an estimator.*got: float16.*source\.dtype=float32"):
        ConvertConfig(OnnxFile(saved(tmp_path)), dtype="float16")


def test_bfloat16_runs_on_a_cpu_once_it_is_float32(tmp_path):
    config = ConvertConfig(OnnxFile(saved(tmp_path, "bfloat16"), dtype="float32", task="regression"))
    artifact = convert(None, config, data=Data(Rows({"x": x.astype(np.float32)}, np.zeros((8, 2)))))
    wide = onnx.numpy_helper.to_array(artifact.model.graph.initializer[0]).astype(np.float32)
    [y] = Session(artifact.model).run({"x": x.astype(np.float32)}, [artifact.facts.prediction])
    np.testing.assert_allclose(y, np.maximum(x.astype(np.float32) @ wide * 2, 0), rtol=1e-5)


@pytest.mark.parametrize(("rate", "said"), [(1e-7, True), (0.05, False)])
def test_moves_that_float16_rounds_back_are_said(tmp_path, rate, said):
    rows = Rows({"x": x.astype(np.float32)}, np.ones((8, 2), np.float32))
    config = ConvertConfig(OnnxFile(saved(tmp_path), task="regression"))
    source = derive(add_loss(convert(None, config, data=Data(rows)), AddLossConfig(LOSSES["l2"]())))
    result = train(source, TrainConfig(OPTIMIZERS["sgd"](rate), epochs=3, batch_size=8), data=Data(rows))
    notes = [note for note in result.facts.lineage[-1].get("notes", ()) if "float16 rounds" in note]
    assert bool(notes) == said
    assert (result.initializers["w"] == w).all() == said
    file, output = tmp_path / "model.onnx", tmp_path / "new.onnx"
    done = into_onnx(file, output, {"w": result.tensors["parameter/w"]}, {}, {})
    assert done.written == (() if said else ("w",))
    assert onnx.numpy_helper.to_array(onnx.load(output).graph.initializer[0]).dtype == np.float16
