"""ortpipe adapter: the model before training and a file of onnxruntime's are the trained model."""

from __future__ import annotations

from collections.abc import Callable

import flatbuffers
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from flatbuffers.number_types import Int32Flags, Int64Flags, Uint8Flags
from flatbuffers.table import Table

from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    ConvertConfig,
    Data,
    DeriveConfig,
    Rows,
    TrainConfig,
    add_loss,
    convert,
    derive,
    save_artifact,
    train,
)
from ortpipe.errors import ConfigError
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.derive.lora import Lora

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[N,4,6,6] X) => (float[N,3] Y)
  <float[8,4,3,3] k, float[8,3] w, float[3] b> { c = Conv<pads=[1,1,1,1]>(X, k) a = Tanh(c) p = GlobalAveragePool(a)
  f = Flatten(p) m = MatMul(f, w) Y = Add(m, b) }"""
# What AdapterFormat.export_adapter of onnxruntime 1.23.2 wrote of w/lora_A = [[0, 1, 2], [3, 4, 5]] and bb = [0, 1]
STOCK = bytes.fromhex(
    "08000000544f5254b0ffffff010000000300000005000000040000000200000044000000"
    "04000000d0ffffff24000000140000000a0000000400000004000000"
    "0000003c010000000200000000000000020000006262"
    "00000c00140004000800"
    "0c0010000c000000400000002800000001000000040000001800000000000000"
    "0000803f0000004000004040000080400000a040020000000200000000000000"
    "030000000000000008000000772f6c6f72615f4100000000"
)


def arrays_of(file: bytes) -> dict[str, np.ndarray]:
    """Read a file of adapters by its schema."""
    assert file[4:8] == b"TORT"
    root = Table(file, int.from_bytes(file[:4], "little"))
    assert root.Get(Int32Flags, root.Pos + root.Offset(4)) == 1
    arrays, slot = {}, root.Offset(10)
    for i in range(root.VectorLen(slot)):
        entry = Table(file, root.Indirect(root.Vector(slot) + 4 * i))
        name, dims, kind, raw = (entry.Offset(4 + 2 * field) for field in range(4))
        shape = entry.GetVectorAsNumpy(Int64Flags, dims)
        data = entry.GetVectorAsNumpy(Uint8Flags, raw)
        dtype = ir.DataType(entry.Get(Int32Flags, entry.Pos + kind)).numpy()
        arrays[entry.String(entry.Pos + name).decode()] = data.view(dtype).reshape(shape)
    return arrays


def test_the_reader_of_this_test_reads_what_onnxruntime_writes() -> None:
    assert {name: array.tolist() for name, array in arrays_of(STOCK).items()} == {
        "bb": [0, 1],
        "w/lora_A": [[0, 1, 2], [3, 4, 5]],
    }
    assert flatbuffers.__version__


def test_a_model_and_its_adapters_predict_what_the_trained_model_does(call: Callable[..., str], tmp_path) -> None:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(TEXT)
    shapes = {"k": (8, 4, 3, 3), "w": (8, 3), "b": (3,)}
    for name, shape in shapes.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    onnx.save(model, tmp_path / "net.onnx")
    rows = Rows({"X": rng.normal(size=(32, 4, 6, 6)).astype(np.float32)}, rng.normal(size=(32, 3)).astype(np.float32))
    source = convert(None, ConvertConfig(OnnxFile(str(tmp_path / "net.onnx"))), data=Data(rows))
    gradient = derive(
        add_loss(source, AddLossConfig(LOSSES["l2"]())), DeriveConfig(parameters=("b",), adapters=Lora(rank=2, alpha=6))
    )
    trained = train(gradient, TrainConfig(OPTIMIZERS["adam"](lr=0.05), epochs=3), data=Data(rows))
    save_artifact(trained, tmp_path / "trained")

    said = call("adapter", str(tmp_path / "trained"), "--output", "mine.onnx_adapter")
    assert said.splitlines()[0] == "adapters  113 numbers beside k, w"
    base = onnx.load("mine.onnx")
    with open("mine.onnx_adapter", "rb") as file:
        arrays = arrays_of(file.read())
    assert [value.name for value in base.graph.input] == ["X", *arrays]
    assert "b" in arrays
    x, session = rows.inputs["X"], Session(base)
    before = Session(source.model).run({"X": x})[0]  # a kernel that is an input takes another way through the runtime
    np.testing.assert_allclose(session.run({"X": x})[0], before, rtol=1e-5, atol=1e-6)
    [expected] = Session(trained.model).run({"X": x})
    np.testing.assert_allclose(session.run({"X": x, **arrays})[0], expected, rtol=1e-4, atol=1e-5)
    if hasattr(onnxruntime, "LoraAdapter"):  # from 1.20 on
        adapter, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
        adapter.Load("mine.onnx_adapter")
        options.add_active_adapter(adapter)
        [found] = onnxruntime.InferenceSession("mine.onnx").run(None, {"X": x}, options)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    with pytest.raises(ConfigError, match="must not exist yet"):
        call("adapter", str(tmp_path / "trained"), "--output", "mine.onnx_adapter")
    save_artifact(source, tmp_path / "source")
    with pytest.raises(ConfigError, match="has trained"):
        call("adapter", str(tmp_path / "source"), "--output", "no.onnx_adapter")
