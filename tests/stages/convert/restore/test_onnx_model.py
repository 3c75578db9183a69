"""Trained weights go back into a file whose other content stays, in any form and by any writer."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortpipe.errors import ModelError
from ortpipe.stages.convert.restore import into_onnx

TEXT = """<ir_version: 10, opset_import: ["": 21], producer_name: "elsewhere">
    g (float[N,2] X) => (float[N,3] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {0, 0, 1}>
    { h = MatMul(X, w) y = Add(h, b) }"""
W, B = np.arange(6, dtype=np.float32).reshape(2, 3) + 0.25, np.float32([1, 2, 3])
OLD = {"w": np.arange(1, 7, dtype=np.float32).reshape(2, 3), "b": np.float32([0, 0, 1])}
TYPES = ("float32", "float16", "bfloat16", "float64")


def _model(dtype: str = "float32", *, raw: bool = True) -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    kind = {"float32": 1, "float16": 10, "bfloat16": 16, "float64": 11}[dtype]
    for tensor in model.graph.initializer:
        values = OLD[tensor.name]
        if raw:
            array = values.astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
            tensor.CopyFrom(onnx.helper.make_tensor(tensor.name, kind, values.shape, array.tobytes(), raw=True))
        else:
            tensor.CopyFrom(onnx.helper.make_tensor(tensor.name, kind, values.shape, values.ravel()))
    return model


def _saved(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def _arrays(path: Path) -> dict[str, np.ndarray]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
def test_each_type_and_layout_is_written_over_as_it_is_there(dtype: str, raw: bool, tmp_path: Path) -> None:
    file, output = _saved(_model(dtype, raw=raw), tmp_path / "model.onnx"), tmp_path / "new.onnx"
    done = into_onnx(file, output, {"w": W, "b": B}, {}, {})
    assert done.written == ("w", "b")
    expected = _model(dtype, raw=raw)  # the same file, but for the numbers
    for tensor, values in zip(expected.graph.initializer, (W, B), strict=True):
        fresh = onnx.numpy_helper.to_array(tensor).dtype
        made = onnx.helper.make_tensor(
            tensor.name, tensor.data_type, values.shape, values.astype(fresh).tobytes() if raw else values.ravel(), raw
        )
        tensor.CopyFrom(made)
    assert onnx.load(output) == expected
    assert _arrays(file)["w"].astype(np.float32).tolist() == OLD["w"].tolist()


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
def test_without_training_the_file_is_the_same(dtype: str, raw: bool, tmp_path: Path) -> None:
    file, output = _saved(_model(dtype, raw=raw), tmp_path / "model.onnx"), tmp_path / "new.onnx"
    done = into_onnx(file, output, OLD, {}, {})
    assert (done.written, done.unchanged, done.rounding) == ((), ("w", "b"), {})
    assert onnx.load(output) == onnx.load(file)
    assert into_onnx(file, file, OLD, {}, {}).files == ()


def _field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def test_fields_that_nobody_knows_stay_in_any_order(tmp_path: Path) -> None:
    data, unknown = _model().SerializeToString(), b"\xba\x3e\x03new"  # number 999
    tensor = _field(5, _field(8, b"v") + unknown + _field(9, bytes(4)) + b"\x10\x01")  # its name, values and type
    odd = unknown + _field(7, tensor + unknown) + data
    (file := tmp_path / "odd.onnx").write_bytes(odd)
    into_onnx(file, tmp_path / "new.onnx", {"w": W, "v": np.float32(7)}, {"b": OLD["b"]}, {})
    new = (tmp_path / "new.onnx").read_bytes()
    assert new.count(unknown) == 3
    back = new.replace(W.tobytes(), OLD["w"].tobytes()).replace(np.float32(7).tobytes(), bytes(4))
    assert onnx.ModelProto.FromString(back) == onnx.ModelProto.FromString(odd) != onnx.ModelProto.FromString(new)


def test_numbers_in_fields_of_their_own_go_back(tmp_path: Path) -> None:
    """The first writers did not pack float_data."""
    model = _model(raw=False)
    tensors = [model.graph.initializer.pop() for _ in model.graph.initializer[:]]
    data = model.SerializeToString()
    for tensor in tensors:
        numbers = [np.float32(number).tobytes() for number in tensor.float_data]
        del tensor.float_data[:]
        data += _field(7, _field(5, tensor.SerializeToString() + b"".join(bytes([4 << 3 | 5]) + n for n in numbers)))
    (file := tmp_path / "old.onnx").write_bytes(data)
    into_onnx(file, tmp_path / "new.onnx", {"w": W, "b": B}, {}, {})
    new = onnx.load(tmp_path / "new.onnx").graph.initializer
    assert {tensor.name: list(tensor.float_data) for tensor in new} == {"w": W.ravel().tolist(), "b": B.tolist()}


@pytest.mark.parametrize("place", ["b/new.onnx", "a/new.onnx", "a/model.onnx"])
def test_everything_that_was_not_trained_keeps_its_content(place: str, tmp_path: Path) -> None:
    model, file, output = _rich(), tmp_path / "a" / "model.onnx", tmp_path / place
    file.parent.mkdir()
    _saved(model, file)
    new = {"w": W, "x": B, "i": np.float32([7, 8, 9]), "f": np.float32(4), "y": B + 1}
    for name, array in (("x.bin", OLD["b"]), ("other.bin", B * 4), ("y.bin", OLD["b"])):
        file.with_name(name).write_bytes(bytes(8) + array.tobytes())
    origins = {"f": {"node": "c", "attribute": "value"}, "y": {"node": "y", "attribute": "value"}}
    into_onnx(file, output, new, {"b": OLD["b"]}, origins)

    found = onnx.load(output, load_external_data=False)
    prefix = "new.onnx." if place == "a/new.onnx" else ""
    [w, _, x, *_], [c, y] = found.graph.initializer, found.graph.node[:2]
    assert [x.external_data[0].value, y.attribute[0].t.external_data[0].value] == [f"{prefix}x.bin", f"{prefix}y.bin"]
    for name, array in (("x", B), ("y", B + 1)):
        assert output.with_name(f"{prefix}{name}.bin").read_bytes() == bytes(8) + array.tobytes()
    assert (file.with_name("x.bin").read_bytes()[8:] == OLD["b"].tobytes()) == (place != "a/model.onnx")
    assert (list(w.float_data), list(found.graph.initializer[4].int32_data)) == (
        W.ravel().tolist(),
        [0x4700, 0x4800, 0x4880],
    )
    assert (c.attribute[0].f, file.with_name("other.bin").read_bytes()[8:]) == (4, (B * 4).tobytes())

    w.float_data[:], found.graph.initializer[4].int32_data[:] = OLD["w"].ravel().tolist(), [0, 0, 0x3C00]
    c.attribute[0].f = 3
    x.external_data[0].value, y.attribute[0].t.external_data[0].value = "x.bin", "y.bin"
    assert found == model


def _rich() -> onnx.ModelProto:
    """Return a model with some of everything: typed, raw and external tensors, functions, metadata, branches."""
    text = """<ir_version: 10, opset_import: ["": 21, "own": 1], producer_name: "p", metadata_props: ["k": "v"]>
        g (float[N,2] X, bool on) => (float[N,3] z) { c = Constant<value_float = 3.0>()
            y = Constant<value = float[3] {0, 0, 1}>() h = own.twice(X) v = Mul(h, c) q = If(on)
            <then_branch = t () => (float[1] p) { p = Constant<value_floats = [1.0]>() },
             else_branch = e () => (float[1] r) <float[1] r = {2}> { }> z = Mul(v, q) }
        <opset_import: ["": 21], domain: "own"> twice (a) => (b) { k = Constant<value = float {2}>() b = Mul(a, k) }"""
    model, plain, raw = onnx.parser.parse_model(text), _model(raw=False), _model()
    external, other = onnx.TensorProto(), onnx.TensorProto()
    for tensor, name, file in (
        (external, "x", "x.bin"),
        (other, "o", "other.bin"),
        (model.graph.node[1].attribute[0].t, "y", "y.bin"),
    ):
        tensor.CopyFrom(onnx.TensorProto(name=name, data_type=1, dims=[3], data_location=1))
        for key, value in (("location", file), ("offset", "8"), ("length", "12"), ("basepath", "kept")):
            tensor.external_data.add(key=key, value=value)
    half = onnx.helper.make_tensor("i", onnx.TensorProto.FLOAT16, [3], OLD["b"])
    model.graph.initializer.extend([plain.graph.initializer[0], raw.graph.initializer[1], external, other, half])
    model.graph.initializer.add(name="words", data_type=onnx.TensorProto.STRING, dims=[1], string_data=[b"a"])
    for place in (model.graph, model.graph.initializer[0], model.graph.node[0], model.functions[0]):
        place.doc_string = "text"
        place.metadata_props.add(key="some", value="thing")
    model.graph.quantization_annotation.add(tensor_name="w")
    return model


def _external(folder: Path, *, one_file: bool = True) -> Path:
    folder.mkdir(parents=True)
    model, path = _model(), folder / "model.onnx"
    onnx.save(
        model, path, save_as_external_data=True, all_tensors_to_one_file=one_file, location="w.bin", size_threshold=0
    )
    return path


def test_external_data_are_written_whole_in_another_folder(tmp_path: Path) -> None:
    file = _external(tmp_path / "a")
    before = (file.with_name("w.bin")).read_bytes()
    output = tmp_path / "b" / "model.onnx"
    done = into_onnx(file, output, {"w": W}, {"b": OLD["b"]}, {})
    assert [one.name for one in done.files] == ["w.bin", "model.onnx"]
    where = [onnx.load(one, load_external_data=False) for one in (output, file)]
    assert where[0] == where[1]
    assert output.with_name("w.bin").read_bytes() == before.replace(OLD["w"].tobytes(), W.tobytes())
    assert file.with_name("w.bin").read_bytes() == before
    assert _arrays(output)["w"].tolist() == W.tolist()
    assert sorted(one.name for one in output.parent.iterdir()) == ["model.onnx", "w.bin"]


def test_beside_the_original_external_data_get_a_name_of_their_own(tmp_path: Path) -> None:
    file = _external(tmp_path / "a", one_file=False)
    before = {one.name: one.read_bytes() for one in file.parent.iterdir()}
    output = file.with_name("new.onnx")
    into_onnx(file, output, {"w": W}, {"b": OLD["b"]}, {})
    assert {name: file.with_name(name).read_bytes() for name in before} == before
    assert {one.name for one in file.parent.iterdir()} - set(before) == {"new.onnx", "new.onnx.w"}
    assert {k: v.tolist() for k, v in _arrays(output).items()} == {"w": W.tolist(), "b": OLD["b"].tolist()}


def test_in_place_only_what_changed_is_written(tmp_path: Path) -> None:
    file = _external(tmp_path / "a")
    os.chmod(file.with_name("w.bin"), 0o640)
    done = into_onnx(file, file, {"w": W}, {}, {})
    assert [one.name for one in done.files] == ["w.bin"]
    assert _arrays(file)["w"].tolist() == W.tolist()
    assert file.with_name("w.bin").stat().st_mode & 0o777 == 0o640


def test_a_checksum_of_external_data_is_that_of_the_new_ones(tmp_path: Path) -> None:
    file = _external(tmp_path / "a")
    model = onnx.load(file, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data.add(key="checksum", value="0" * 40)
    _saved(model, file)
    into_onnx(file, file, {"w": W}, {}, {})
    digest = hashlib.sha1(file.with_name("w.bin").read_bytes()).hexdigest()
    for tensor in onnx.load(file, load_external_data=False).graph.initializer:
        assert {entry.key: entry.value for entry in tensor.external_data}["checksum"] == digest


def test_a_failure_leaves_everything_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _external(tmp_path / "a")
    before = {one.name: one.read_bytes() for one in file.parent.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        into_onnx(file, file, {"w": W}, {}, {})
    assert {one.name: one.read_bytes() for one in file.parent.iterdir()} == before


def test_what_a_coarser_type_rounds_is_said(tmp_path: Path) -> None:
    file = _saved(_model("float16"), tmp_path / "model.onnx")
    done = into_onnx(file, tmp_path / "new.onnx", {"w": W + np.float32(1e-5), "b": B}, {}, {})
    assert done.rounding == {"w": pytest.approx(1e-5, rel=0.2)}
    with pytest.raises(ModelError, match=r"(?s)hold the trained values.*'w', which is float16 there"):
        into_onnx(file, tmp_path / "newer.onnx", {"w": W * 1e6}, {}, {})


@pytest.mark.parametrize(
    ("trained", "untrained", "origins", "message"),
    [
        ({"w": W, "head/0/weight": W}, {}, {}, "has none for head/0/weight"),
        ({"w": W.T}, {}, {}, r"w: shape \(3, 2\) instead of \(2, 3\)"),
        ({"w": W}, {"b": B}, {}, "different values of b"),
        ({"c": W}, {}, {"c": {"node": "h", "attribute": "value"}}, "has none for c"),
        ({"c": W}, {}, {"c": {"node": "h", "input": 0}}, "has none for c"),
        ({"c": W}, {}, {"c": {"node": "h", "input": 7}}, "has none for c"),
        ({"c": W}, {}, {"c": {"node": "nowhere", "input": 1}}, "has none for c"),
        ({"c": W}, {}, {"c": {"initializer": "w", "transform": [["twist"]]}}, "c: twist"),
        ({"c": W, "d": W + 1}, {}, {n: {"initializer": "w"} for n in "cd"}, "c differ after training"),
    ],
)
def test_what_cannot_go_back_is_refused_before_anything_is_written(
    trained: dict[str, np.ndarray],
    untrained: dict[str, np.ndarray],
    origins: dict[str, dict[str, object]],
    message: str,
    tmp_path: Path,
) -> None:
    file = _saved(_model(), tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=message):
        into_onnx(file, tmp_path / "new.onnx", trained, untrained, origins)
    assert [one.name for one in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("content", [b"", b"no model", bytes(64), b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"])
def test_a_file_that_is_no_model_is_refused(content: bytes, tmp_path: Path) -> None:
    (file := tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ModelError):
        into_onnx(file, tmp_path / "new.onnx", {"w": W}, {}, {})


def test_parts_of_a_tensor_go_back_by_their_origins(tmp_path: Path) -> None:
    file, output = _saved(_model(), tmp_path / "model.onnx"), tmp_path / "new.onnx"
    parts = {"left": np.float32([[9], [8]]), "rest": np.float32([[1, 2], [3, 4]])}
    origins = {
        "left": {"node": "h", "input": 1, "transform": [["slice", 1, 0, 1]]},
        "rest": {"initializer": "w", "transform": [["slice", 1, 1, 3], ["transpose"]]},
    }
    into_onnx(file, output, parts, {}, origins)
    assert _arrays(output)["w"].tolist() == [[9, 1, 3], [8, 2, 4]]


def test_quantized_weights_go_back_rounded(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,2] y)
        <int8[2,2] q = {1, -2, 3, 4}, float s = {0.5}, int8 z = {1}>
        { w = DequantizeLinear(q, s, z) y = MatMul(X, w) }"""
    file, output = _saved(onnx.parser.parse_model(text), tmp_path / "model.onnx"), tmp_path / "new.onnx"
    origins = {"w": {"node": "w", "input": 0, "transform": [["dequantize", "s", "z", 0]]}}
    held = np.float32([[0, -1.5], [1, 1.5]])
    assert into_onnx(file, output, {"w": held}, {}, origins).written == ()
    assert onnx.load(output) == onnx.load(file)
    done = into_onnx(file, output, {"w": held + np.float32([[0.1, 0], [-70, 0.5]])}, {}, origins)
    assert _arrays(output)["q"].tolist() == [[1, -2], [-128, 5]]  # as int32_data, whose length grows by nine bytes
    assert done.rounding["w"] == pytest.approx(4.5)
    assert into_onnx(file, output, {}, {"w": held}, origins).written == ()
    with pytest.raises(ModelError, match="different values of w"):
        into_onnx(file, output, {}, {"w": held + 1}, origins)
    with pytest.raises(ModelError, match="steps that the run does not record"):
        into_onnx(file, output, {"q": held}, {}, {})
    onnx.checker.check_model(onnx.load(output), full_check=True)


def test_values_of_constant_nodes_go_back(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,2] y) {
        w = Constant<value = float[2,2] {1, 2, 3, 4}>() b = Constant<value_floats = [1.0, 2.0]>()
        c = Constant<value_float = 3.0>() h = Gemm(X, w, b) y = Mul(h, c) }"""
    file, output = _saved(onnx.parser.parse_model(text), tmp_path / "model.onnx"), tmp_path / "new.onnx"
    new = {"w": W[:, :2], "b": B[1:], "c": np.float32(5)}
    origins = {
        "w": {"node": "w", "attribute": "value"},
        "b": {"node": "h", "input": 2},
        "c": {"node": "c", "attribute": "value"},
    }
    assert into_onnx(file, output, new, {}, origins).written == ("w", "b", "c")
    found = {
        n.output[0]: onnx.helper.get_node_attr_value(n, n.attribute[0].name) for n in onnx.load(output).graph.node[:3]
    }
    assert onnx.numpy_helper.to_array(found["w"]).tolist() == new["w"].tolist()
    assert (found["b"], found["c"]) == ([2, 3], 5)
    assert output.stat().st_size == file.stat().st_size


def test_weights_of_branches_go_back_where_their_name_is_the_only_one(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X, bool on) => (float[N,2] y) {
        y = If(on) <then_branch = a () => (float[N,2] p) <float[2,2] w = {1, 2, 3, 4}, float[2] b = {1, 1}>
                       { v = Constant<value = float[2] {1, 2}>() h = Mul(X, v) k = MatMul(h, w) p = Add(k, b) },
                    else_branch = c () => (float[N,2] q) <float[2] b = {2, 2}> { q = Add(X, b) }> }"""
    file, output = _saved(onnx.parser.parse_model(text), tmp_path / "model.onnx"), tmp_path / "new.onnx"
    new = {"w": W[:, :2], "v": B[:2] * 3}
    origins = {"w": {"initializer": "w"}, "v": {"node": "v", "attribute": "value"}}
    assert into_onnx(file, output, new, {}, origins).written == ("w", "v")
    then = onnx.load(output).graph.node[0].attribute[0].g
    assert onnx.numpy_helper.to_array(then.initializer[0]).tolist() == new["w"].tolist()
    assert onnx.numpy_helper.to_array(then.node[0].attribute[0].t).tolist() == [3, 6]
    with pytest.raises(ModelError, match="has none for b"):
        into_onnx(file, tmp_path / "newer.onnx", {"b": B[:2]}, {}, {"b": {"initializer": "b"}})
