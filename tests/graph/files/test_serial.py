import json

import numpy as np
import onnx
import onnx.parser
import pytest
import safetensors.numpy

from ortpipe.artifact import Artifact, Facts
from ortpipe.artifact_folder import load_artifact, save_artifact
from ortpipe.errors import ModelError
from ortpipe.graph.core import protos
from ortpipe.graph.core.types import IR_VERSION, OPSET
from ortpipe.graph.files import serial
from ortpipe.graph.files.serial import read, write
from ortpipe.graph.importing.lower import lowered
from ortpipe.runtime.session import Session

TEXT = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[N, 3] X) => (float[N, 400] Y)
{ h = MatMul(X, w)  Y = Add(h, b) }
"""
BRANCH = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[N, 3] X, bool flag) => (float[N, 400] Y)
{
  h = MatMul(X, w)
  Y = If (flag) <
    then_branch = yes () => (float[N, 400] a) { a = Add(h, b) },
    else_branch = no () => (float[N, 400] c) { c = Neg(h) }
  >
}
"""
FACTS = Facts("regression", inputs=("X",), outputs=("Y",), prediction="Y", parameters=("w",))
rng = np.random.default_rng(0)
WEIGHTS = {"w": rng.normal(size=(3, 400)).astype(np.float32), "b": rng.normal(size=400).astype(np.float32)}
TENSORS = {
    "loss/train": np.arange(5.0),
    "scalar": np.float32(0.5),
    "empty": np.zeros((0, 3)),
    "flags": np.array([True, False]),
    "half": np.array([1.5], np.float16),
    "count": np.array([[1, 2]], np.int64),
}


def model(text=TEXT):
    made = onnx.parser.parse_model(text)
    place = made.graph
    for name, array in WEIGHTS.items():
        if name == "b" and text == BRANCH:
            [place] = [a.g for a in made.graph.node[1].attribute if a.name == "then_branch"]
        place.initializer.append(onnx.numpy_helper.from_array(array, name))
    return made


def simple(version, *, ir_version=8, body="Y = MatMul(X, w)", domain=""):
    return onnx.parser.parse_model(
        f'<ir_version: {ir_version}, opset_import: ["{domain}" : {version}]> '
        f"g (float[N, 3] X) => (float[N, 3] Y) <float[3, 3] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}> {{ {body} }}"
    )


def files(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(params=[False, True], ids=["one file", "external data"])
def external(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(protos, "LARGE_MODEL", 100)
    return request.param


@pytest.mark.parametrize("text", [TEXT, BRANCH], ids=["plain", "weights in a subgraph"])
def test_an_artifact_comes_back_as_it_was(tmp_path, external, text):
    facts = Facts(**{**FACTS.__dict__, "lineage": ({"stage": "convert", "version": 1},)})
    artifact = Artifact(model(text), facts, TENSORS)
    before = artifact.model.SerializeToString()
    folder = save_artifact(artifact, tmp_path / "a")
    back = load_artifact(folder)
    assert ("model.onnx.data" in files(folder)) == external
    assert back.digest() == artifact.digest()
    assert back.facts == facts
    assert list(back.tensors) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        assert back.tensors[name].dtype == np.asarray(tensor).dtype
        np.testing.assert_array_equal(back.tensors[name], tensor, strict=True)
    assert artifact.model.SerializeToString() == before


def test_a_source_s_weight_that_the_model_still_has_stands_once(tmp_path, external):
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model().graph.initializer}
    name = next(iter(weights))
    others = {"source/gone": np.ones(2, np.float32), "parameter/x": weights[name]}
    artifact = Artifact(model(), FACTS, {f"source/{name}": weights[name].copy(), **others})
    folder = save_artifact(artifact, tmp_path / "a")
    assert sorted(safetensors.numpy.load_file(folder / "tensors.safetensors")) == sorted(others)
    back = load_artifact(folder)
    assert back.digest() == artifact.digest()
    assert np.shares_memory(back.tensors[f"source/{name}"], back.initializers[name])


def test_both_forms_of_storage_have_one_digest(tmp_path, monkeypatch):
    artifact = Artifact(model(), FACTS, TENSORS)
    save_artifact(artifact, tmp_path / "small")
    monkeypatch.setattr(protos, "LARGE_MODEL", 100)
    save_artifact(artifact, tmp_path / "large")
    assert (tmp_path / "large" / "model.onnx").stat().st_size < (tmp_path / "small" / "model.onnx").stat().st_size
    recorded = [json.loads((tmp_path / k / "artifact.json").read_text())["digest"] for k in ("small", "large")]
    assert recorded == [artifact.digest()] * 2
    assert load_artifact(tmp_path / "large").digest() == load_artifact(tmp_path / "small").digest()


def test_saving_twice_writes_the_same_bytes(tmp_path, external):
    for name in ("a", "b"):
        save_artifact(Artifact(model(), FACTS, TENSORS), tmp_path / name)
    for file in files(tmp_path / "a"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_saved_artifact_replaces_an_older_one(tmp_path, monkeypatch):
    with monkeypatch.context() as context:
        context.setattr(protos, "LARGE_MODEL", 100)
        save_artifact(Artifact(model(), FACTS, TENSORS), tmp_path / "a")
    save_artifact(Artifact(model(), FACTS), tmp_path / "a")
    assert files(tmp_path) == ["a"]
    assert files(tmp_path / "a") == ["artifact.json", "model.onnx", "tensors.safetensors"]
    assert not load_artifact(tmp_path / "a").tensors


def test_an_artifact_that_cannot_be_written_leaves_the_old_one_and_nothing_else(tmp_path):
    old = Artifact(model(), FACTS, TENSORS)
    save_artifact(old, tmp_path / "a")
    words = Artifact(model(), FACTS, {"words": np.array(["no safetensors type"])})
    with pytest.raises(Exception, match=r".") as caught:
        save_artifact(words, tmp_path / "a")
    assert not isinstance(caught.value, AssertionError)
    assert files(tmp_path) == ["a"]
    assert load_artifact(tmp_path / "a").digest() == old.digest()


def flip(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 0x10
    path.write_bytes(content)


DAMAGE = {
    "a changed weight": ("model.onnx", lambda p: flip_weight(p)),
    "a changed tensor": ("tensors.safetensors", flip),
    "half a model": ("model.onnx", lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2])),
    "half the tensors": ("tensors.safetensors", lambda p: p.write_bytes(p.read_bytes()[:20])),
    "no model": ("model.onnx", lambda p: p.unlink()),
    "no tensors": ("tensors.safetensors", lambda p: p.unlink()),
    "no record": ("artifact.json", lambda p: p.unlink()),
    "half a record": ("artifact.json", lambda p: p.write_text(p.read_text()[:40])),
    "a record of nothing": ("artifact.json", lambda p: p.write_text("{}")),
    "a record of another shape": ("artifact.json", lambda p: p.write_text("[]")),
    "a record without a fact": ("artifact.json", lambda p: p.write_text('{"facts": {}, "digest": ""}')),
    "another digest": ("artifact.json", lambda p: p.write_text(p.read_text().replace('"digest": "', '"digest": "0'))),
}


def flip_weight(path):
    damaged = onnx.load(path)
    damaged.graph.initializer[0].raw_data = b"\x01" + damaged.graph.initializer[0].raw_data[1:]
    path.write_bytes(damaged.SerializeToString())


@pytest.mark.parametrize(("file", "damage"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_artifact_is_refused_by_name(tmp_path, file, damage):
    folder = save_artifact(Artifact(model(), FACTS, TENSORS), tmp_path / "a")
    damage(folder / file)
    with pytest.raises(ModelError, match=str(folder)):
        load_artifact(folder)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"artifact\.json"):
        load_artifact(tmp_path / "nope")


def test_a_written_model_is_read_back_the_same(tmp_path, external):
    given = model()
    before = given.SerializeToString()
    path = write(given, tmp_path, "x.onnx")
    rows = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(Session(read(path)).run({"X": rows})[0], Session(given).run({"X": rows})[0])
    assert given.SerializeToString() == before
    assert files(tmp_path) == (["x.onnx", "x.onnx.data"] if external else ["x.onnx"])


@pytest.mark.parametrize("suffix", ["onnx", "json", "onnxtxt", "model"])
@pytest.mark.parametrize("content", [b"not an onnx model at all", b"\xff\xff\xff\xff"])
def test_a_file_that_is_no_model_is_refused_by_name(tmp_path, content, suffix):
    path = tmp_path / f"bad.{suffix}"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=rf"readable(.|\n)*bad\.{suffix}"):
        read(path)


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(ModelError, match="at least one node"):
        read(tmp_path / "empty.onnx")


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(ModelError, match=r"must exist(.|\n)*nope\.onnx"):
        read(tmp_path / "nope.onnx")
    with pytest.raises(ModelError, match="must exist"):
        read(tmp_path)


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_external_data_that_is_missing_or_short_is_refused(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(protos, "LARGE_MODEL", 100)
    path = write(model(), tmp_path)
    data = tmp_path / "model.onnx.data"
    data.unlink() if damage == "missing" else data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(ModelError, match="external data"):
        read(path)


def test_external_data_outside_the_models_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(protos, "LARGE_MODEL", 100)
    inside = tmp_path / "inside"
    inside.mkdir()
    path = write(model(), inside)
    (inside / "model.onnx.data").rename(tmp_path / "model.onnx.data")
    bare = onnx.load(path, load_external_data=False)
    for tensor in bare.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../model.onnx.data"
    path.write_bytes(bare.SerializeToString())
    with pytest.raises(ModelError, match="external data"):
        read(path)


@pytest.mark.parametrize(
    ("version", "expected"),
    [(7, 18), (12, 18), (15, 18), (16, 18), (17, 18), (18, 18), (21, 21), (22, 21), (24, 21), (26, 21)],
)
def test_a_model_is_brought_to_what_the_runtime_loads(version, expected):
    given = simple(version, ir_version=13 if version > 21 else 7)
    before = given.SerializeToString()
    low = lowered(given)
    assert [(o.domain, o.version) for o in low.opset_import] == [("", expected)]
    assert low.ir_version == (IR_VERSION if version > 21 else 8)
    rows = np.eye(3, dtype=np.float32)
    np.testing.assert_array_equal(Session(low).run({"X": rows})[0], np.arange(1, 10).reshape(3, 3))
    assert given.SerializeToString() == before


def test_an_operator_without_an_older_form_is_refused_by_name():
    with pytest.raises(ModelError, match=r"opset 26(.|\n)*CumProd"):
        lowered(simple(26, ir_version=13, body="axis = Constant<value_ints=[1]>() Y = CumProd(X, axis)"))


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([("", 17), ("", 17)], 18),
        ([("", 19), ("ai.onnx", 19)], 19),
        ([("", 22), ("", 22)], OPSET),
        ([("ai.onnx", 24)], OPSET),
        ([("", 19), ("", 1)], 19),
    ],
)
def test_a_default_domain_that_is_listed_twice_is_listed_once(entries, expected):
    given = simple(17)
    del given.opset_import[:]
    for domain, version in entries:
        given.opset_import.add(domain=domain, version=version)
    low = lowered(given)
    assert [(o.domain, o.version) for o in low.opset_import] == [("", expected)]
    onnx.checker.check_model(low, full_check=True)
    assert Session(low).run({"X": np.eye(3, dtype=np.float32)})[0].shape == (3, 3)


def test_other_domains_keep_their_version():
    given = simple(22)
    given.opset_import.add(domain="ai.onnx.ml", version=3)
    assert [(o.domain, o.version) for o in lowered(given).opset_import] == [("", 21), ("ai.onnx.ml", 3)]


@pytest.mark.parametrize("version", [17, 22])
def test_local_functions_are_inlined(version):
    given = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {version}, "own" : 1]> '
        "g (float[N, 3] X) => (float[N, 1] Y) <float[3, 1] w = {1, 2, 3}> { Y = own.linear(X, w) }"
        f'<domain: "own", opset_import: ["" : {version}]> linear (a, b) => (c) {{ c = MatMul(a, b) }}'
    )
    low = lowered(given)
    assert [node.op_type for node in low.graph.node] == ["MatMul"]
    assert not low.functions


@pytest.mark.parametrize("file", ["model.onnx", "tensors.safetensors", "artifact.json"])
def test_no_flipped_bit_is_read_as_another_artifact_or_ends_in_a_traceback(tmp_path, file):
    made = Artifact(simple(17), FACTS, {"source/w": np.ones((3, 3), np.float32)})
    path = save_artifact(made, tmp_path / "a") / file
    good, refused = path.read_bytes(), 0
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1 << place % 8]) + good[place + 1 :])
        try:
            assert load_artifact(tmp_path / "a").digest() == made.digest()  # a bit that no content hangs on
        except ModelError:
            refused += 1
    assert refused > len(good) / 3


def test_external_data_are_not_linked_because_onnx_refuses_files_of_two_names(tmp_path, monkeypatch):
    made = Artifact(model(), FACTS, TENSORS)
    monkeypatch.setattr(protos, "LARGE_MODEL", 1000)
    save_artifact(made, tmp_path / "a")
    save_artifact(made, tmp_path / "b", like=tmp_path / "a")
    names = {p.name: p.stat().st_nlink for p in (tmp_path / "b").iterdir()}
    assert names == {"artifact.json": 1, "model.onnx": 2, "model.onnx.data": 1, "tensors.safetensors": 2}
    assert [load_artifact(tmp_path / name).digest() for name in "ab"] == [made.digest()] * 2


def test_external_data_of_a_local_functions_constants_are_found_and_read(tmp_path):
    made = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
        net (float[N, 3] X) => (float[N, 3] Y) { Y = own.shift(X) }
        <opset_import: ["" : 21], domain: "own">
        shift (x) => (y) { c = Constant <value = float[3] {1, 2, 3}> () y = Add(x, c) }"""
    )
    [tensor] = [a.t for a in made.functions[0].node[0].attribute]
    weights = onnx.numpy_helper.to_array(tensor).tobytes()
    (tmp_path / "c.bin").write_bytes(weights)
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "c.bin", "offset": "0", "length": str(len(weights))}.items():
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "a.onnx").write_bytes(made.SerializeToString())
    assert [p.name for p in serial.files(tmp_path / "a.onnx")] == ["a.onnx", "c.bin"]
    [read_back] = [a.t for a in read(tmp_path / "a.onnx").functions[0].node[0].attribute]
    assert onnx.numpy_helper.to_array(read_back).tolist() == [1, 2, 3]
    assert not read_back.HasField("data_location")
