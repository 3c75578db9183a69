import dataclasses
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
import safetensors.numpy

import ortpipe
from ortpipe.artifact import Artifact, Facts
from ortpipe.errors import ModelError
from ortpipe.facts_json import read_facts, read_metadata
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.check import finish
from ortpipe.graph.files.tensors import write_tensors

TEXT = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[N, 3] X) => (float[N, 2] Y)
<float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {0.5, -0.5}>
{ h = MatMul(X, w)  Y = Add(h, b) }
"""
FACTS = Facts("regression", inputs=("X",), outputs=("Y",), prediction="Y", parameters=("w", "b"))
FULL = Facts(
    task="multiclass",
    inputs=("X", "Z"),
    outputs=("label", "p"),
    prediction="p",
    parameters=("w",),
    logits="h",
    classes=("é", "b", "c"),
    label="label_1",
    sample_weight="sample_weight",
    loss="loss",
    reduction="mean",
    gradients={"w": "w_grad"},
    input_gradients={"X": "X_grad"},
    columns={"X": ("age", "city=Oslo"), "Z": ("vip",)},
    metrics={"accuracy": {"before": 0.25, "trained": 1.0}},
    lineage=({"stage": "convert", "version": 1},),
)


def model(text=TEXT):
    return onnx.parser.parse_model(text)


def artifact(**tensors):
    return Artifact(model(), FACTS, tensors)


@pytest.mark.parametrize("facts", [FACTS, FULL, dataclasses.replace(FULL, classes=(0, 1, 2))])
def test_facts_come_back_from_json_as_they_were(facts):
    assert read_facts(json.loads(json.dumps(facts.as_json()))) == facts


def test_facts_that_are_not_set_are_not_written():
    assert set(FACTS.as_json()) == {"task", "inputs", "outputs", "prediction", "parameters"}


def test_facts_of_another_version_are_refused_by_name():
    with pytest.raises(ModelError, match="unknown: colour"):
        read_facts({**FACTS.as_json(), "colour": "red"})


def test_the_bare_model_explains_itself():
    made = Artifact(model(), FULL)
    expected = {k: v for k, v in FULL.as_json().items() if k != "lineage"}
    assert read_metadata(onnx.load_model_from_string(made.model.SerializeToString())) == expected


def test_metadata_of_others_is_kept_and_ours_is_written_once():
    given = model()
    given.metadata_props.add(key="author", value="A. N. Other")
    twice = Artifact(Artifact(given, FULL).model, FACTS).model
    keys = [p.key for p in twice.metadata_props]
    assert keys[0] == "author"
    assert sorted(set(keys)) == sorted(keys)
    assert read_metadata(twice) == FACTS.as_json()


def test_a_model_that_ortpipe_has_not_seen_holds_no_facts():
    assert read_metadata(model()) == {}


def test_the_given_model_and_tensors_are_not_touched():
    given, tensor = model(), np.arange(4.0)
    before = given.SerializeToString()
    made = Artifact(given, FACTS, {"loss": tensor})
    assert given.SerializeToString() == before
    assert tensor.flags.writeable
    tensor[0] = 9
    assert made.tensors["loss"][0] == 0


def test_tensors_cannot_be_changed():
    made = artifact(loss=np.arange(3.0))
    with pytest.raises(ValueError, match="read-only"):
        made.tensors["loss"][0] = 1
    with pytest.raises(TypeError):
        made.tensors["other"] = np.ones(1)


def test_an_artifact_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        artifact().facts = FULL


def test_nobody_can_change_the_model_of_an_artifact():
    made = artifact(loss=np.arange(3.0))
    before, content = made.digest(), made.model.SerializeToString(deterministic=True)
    made.model.graph.node[0].op_type = "Gemm"
    made.ir_model().graph.initializers["w"].name = "v"
    with pytest.raises(ValueError, match="read-only"):
        made.initializers["w"][0, 0] = 9
    with pytest.raises(TypeError):
        made.initializers["v"] = np.ones(1)
    assert made.model.SerializeToString(deterministic=True) == content
    assert made.digest() == before == Artifact(made.model, FACTS, made.tensors).digest()


def test_a_model_of_values_is_cleaned_shaped_and_checked_when_it_is_sealed():
    loose = ir.from_onnx_text(TEXT.replace("Y = Add", "dead = Neg(h) Y = Add"))
    made = artifact().next("add_loss", 1, model=loose)
    assert [node.op_type for node in made.model.graph.node] == ["MatMul", "Add"]
    assert [value.name for value in made.model.graph.value_info if value.name == "h"] == ["h"]
    with pytest.raises(ModelError, match=r"onnx\.checker with full check"):
        artifact().next("add_loss", 1, model=ir.from_onnx_text(TEXT.replace("Add", "Adds")))


def but(made, model=None, facts=None, tensors=None):
    return Artifact(model or made.model, facts or made.facts, made.tensors if tensors is None else tensors)


def changed_initializer(made):
    changed = onnx.ModelProto()
    changed.CopyFrom(made.model)
    weights = onnx.numpy_helper.to_array(changed.graph.initializer[0]).copy()
    weights[0, 0] = np.nextafter(weights[0, 0], np.float32(2))
    changed.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights, "w"))
    return but(made, model=changed)


def changed_node(made):
    changed = onnx.ModelProto()
    changed.CopyFrom(made.model)
    changed.graph.node[1].op_type = "Sub"
    return but(made, model=changed)


CHANGES = {
    "a weight": changed_initializer,
    "a node": changed_node,
    "a fact": lambda made: but(made, facts=dataclasses.replace(FACTS, loss="Y")),
    "a tensor's value": lambda made: but(made, tensors={"t": made.tensors["t"] + 1}),
    "a tensor's name": lambda made: but(made, tensors={"u": made.tensors["t"]}),
    "a tensor's shape": lambda made: but(made, tensors={"t": made.tensors["t"].reshape(2, 2)}),
    "a tensor's type": lambda made: but(made, tensors={"t": made.tensors["t"].view(np.int64)}),
    "no tensor": lambda made: but(made, tensors={}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_digest_tells_content_apart(change):
    made = artifact(t=np.arange(4.0))
    assert change(made).digest() != made.digest()


def raw_data(made):
    changed = onnx.ModelProto()
    changed.CopyFrom(made.model)
    for tensor in changed.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    return but(made, model=changed)


SAME = {
    "lineage": lambda made: but(made, facts=dataclasses.replace(FACTS, lineage=({"a": 1},))),
    "byte order": lambda made: but(made, tensors={k: v.astype(">f8") for k, v in made.tensors.items()}),
    "memory order": lambda made: but(made, tensors={k: np.asfortranarray(v) for k, v in made.tensors.items()}),
    "order of tensors": lambda made: but(made, tensors=dict(reversed(list(made.tensors.items())))),
    "how weights are encoded": raw_data,
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_the_digest_does_not_see(change):
    made = artifact(t=np.arange(6.0).reshape(2, 3), s=np.ones(2))
    assert change(made).digest() == made.digest()


def test_string_initializers_have_a_digest():
    text = '<ir_version: 10, opset_import: ["" : 21]> g (int64[N] i) => (string[N] s) <string[2] names = {"a", "b"}> '
    one, two = (Artifact(model(text.replace('"b"', b) + "{ s = Gather(names, i) }"), FACTS) for b in ('"b"', '"c"'))
    assert one.digest() != two.digest()


def test_the_digest_is_a_sha256_and_the_same_in_another_process():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import onnx.parser; from ortpipe.artifact import Artifact, Facts\n"
        "facts = Facts('regression', ('X',), ('Y',), 'Y', ('w', 'b'))\n"
        "print(Artifact(onnx.parser.parse_model(sys.argv[2]), facts, {}).digest())"
    )
    root = str(Path(ortpipe.__file__).parent.parent)
    command = [sys.executable, "-c", code, root, TEXT]
    other = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"})
    assert other.stdout.strip() == artifact().digest()
    assert len(artifact().digest()) == len(hashlib.sha256().hexdigest())


def test_the_next_artifact_has_one_lineage_record_more():
    first = artifact(t=np.ones(2))
    before = first.digest()
    second = first.next("add_loss", 3, loss="Y")
    assert second.facts.lineage == ({"stage": "add_loss", "version": 3, "input": before},)
    assert second.facts.loss == "Y"
    assert list(second.tensors) == ["t"]
    assert first.digest() == before
    assert first.facts.lineage == ()
    assert read_metadata(second.model)["loss"] == "Y"


def test_the_next_artifact_takes_other_tensors_and_another_model():
    other = model(TEXT.replace("Add", "Sub"))
    second = artifact(t=np.ones(2)).next("train", 1, model=other, tensors={})
    assert dict(second.tensors) == {}
    assert [n.op_type for n in second.model.graph.node] == ["MatMul", "Sub"]


def test_large_weights_stay_out_of_what_is_checked_and_change_no_byte() -> None:
    weights = {"w": np.random.default_rng(0).normal(size=(80, 80)).astype(np.float32), "b": np.ones(80, np.float32)}
    x = ir.val("x", ir.DataType.FLOAT, ["N", 80])
    op = Builder(ir.Graph([x], [], nodes=[], opset_imports={"": 18}, name="g"), "net")
    y = op.Add(op.MatMul(x, op.parameter("w", weights["w"])), op.parameter("b", weights["b"]))
    op.graph.outputs.append(op.rename(y, "y"))
    model = ir.Model(op.graph, ir_version=8)
    facts = Facts("regression", ("x",), ("y",), "y", ("w", "b"))
    whole, apart = Artifact(finish(model), facts), Artifact(model, facts)
    assert apart.digest() == whole.digest()
    assert apart.model.SerializeToString(deterministic=True) == whole.model.SerializeToString(deterministic=True)
    weights["w"][0, 0] = 7  # the caller's own array stays the caller's
    assert apart.initializers["w"][0, 0] != 7
    assert not apart.initializers["w"].flags.writeable
    assert apart.next("derive", 1, model=apart.ir_model()).initializers["w"] is apart.initializers["w"]


def test_the_file_of_tensors_is_the_one_that_safetensors_writes(tmp_path):
    rng = np.random.default_rng(0)
    kinds = ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
    arrays = {f"a/{kind} ä": rng.integers(0, 9, (2, 3)).astype(kind) for kind in kinds}
    arrays |= {"b": np.array([True, False, True]), "c": np.array(1.5), "d": np.zeros((0, 4), np.float32)}
    arrays |= {"e": np.arange(3).astype(ml_dtypes.bfloat16)}
    with open(tmp_path / "x", "wb") as file:
        write_tensors(arrays, file)
    read = safetensors.numpy.load_file(tmp_path / "x")
    assert {name: (a.dtype, a.shape, a.tobytes()) for name, a in read.items()} == {
        name: (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()
    }
    plain = {name: a for name, a in arrays.items() if name != "e"}
    with open(tmp_path / "y", "wb") as file:
        write_tensors(plain, file)
    assert len((tmp_path / "y").read_bytes()) == len(safetensors.numpy.save(plain))
    (tmp_path / "z").write_bytes(b"")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "z").stat().st_mode


def test_a_notebook_shows_what_is_known_and_the_graph():
    op = Builder(ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="g"), "net")
    x = op.input("<x>", ir.DataType.FLOAT, ["N", 2])
    y = op.MatMul(x, op.parameter("w", np.ones((2, 1), np.float32)))
    op.graph.outputs.append(op.rename(y, "y"))
    facts = Facts("regression", ("<x>",), ("y",), "y", ("w",), metrics={"r2": {"trained": 0.51239}})
    page = Artifact(ir.Model(op.graph, ir_version=8), facts)._repr_html_()
    for shown in ("2 numbers in 1 parameters: w", "&lt;x&gt;", "<td>0.5124</td>", "<svg", "MatMul"):
        assert shown in page
    assert "<x>" not in page


def test_the_facts_that_are_written_are_those_that_as_json_returns() -> None:
    for facts in (FACTS, FULL):
        written = json.dumps(facts.fields(), indent=1, default=vars)
        assert written == json.dumps(facts.as_json(), indent=1)
