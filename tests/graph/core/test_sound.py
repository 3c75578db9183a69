"""Files that nobody exports, and that somebody may send."""

from __future__ import annotations

import json
import random

import onnx
import onnx.helper as h
import onnx.parser
import pytest

from ortpipe.errors import ModelError, OrtpipeError
from ortpipe.facts_json import read_facts, read_metadata
from ortpipe.graph.core.sound import check_sound, check_valid
from ortpipe.graph.files.serial import read
from ortpipe.graph.importing.lower import lowered
from ortpipe.graph.pictures.draw import to_text
from ortpipe.stages.convert.stage import convert

TEXT = """
<ir_version: 10, opset_import: ["" : 21, "l" : 1]>
g (float[N, 3] X) => (float[N, 2] Y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {1, 1}>
{ h = MatMul(X, w)  s = Add(h, b)  Y = l.f(s) }
<domain: "l", opset_import: ["" : 21]> f (a) => (c) { d = Relu(a)  c = Neg(d) }
"""


def model():
    return onnx.parser.parse_model(TEXT)


def called_by(name, *calls):
    opsets = [h.make_opsetid("", 21), h.make_opsetid("l", 1)]
    nodes = [h.make_node(c, ["a" if i == 0 else f"t{i}"], [f"t{i + 1}"], domain="l") for i, c in enumerate(calls)]
    return h.make_function("l", name, ["a"], [f"t{len(calls)}"], nodes, opsets)


def doubling(m):
    m.functions.extend(called_by(f"f{i}", *([f"f{i - 1}" if i else "f"] * 2)) for i in range(30))
    m.graph.node[2].op_type = "f29"


def not_utf8(m):
    m.graph.node[0].name = "abcdefgh"
    m.ParseFromString(m.SerializeToString().replace(b"abcdefgh", b"\xff\xfebcdefg"))


def text_of_no_kind(m):
    m.graph.node[0].attribute.append(h.make_attribute("told", b"\xff"))


def unknown_kind(m):
    m.graph.input[0].type.tensor_type.elem_type = 99


def shared(m):
    m.graph.initializer[1].name = "h"
    m.graph.node[1].input[1] = "h"


def sparse(m):
    m.graph.sparse_initializer.add().values.CopyFrom(m.graph.initializer[1])


def text_in_bytes(m):
    m.graph.initializer[0].data_type = onnx.TensorProto.STRING
    m.graph.initializer[0].raw_data = b"a"


def twice(m):
    m.graph.initializer.add().CopyFrom(m.graph.initializer[0])


# what is wrong → how it gets into a model, and what is said
WRONG = {
    "a type that is none": (lambda m: setattr(m.graph.initializer[0], "data_type", 99), "type must be one of ONNX's"),
    "a negative dimension": (lambda m: m.graph.initializer[0].dims.__setitem__(0, -3), "not be negative"),
    "too few bytes": (lambda m: setattr(m.graph.initializer[0], "raw_data", b"123"), "3 bytes instead of 24"),
    "too many numbers": (lambda m: m.graph.initializer[0].float_data.append(7), "7 entries of float_data instead of 6"),
    "no numbers": (lambda m: m.graph.initializer[0].ClearField("float_data"), "0 entries of float_data instead of 6"),
    "bytes of text": (text_in_bytes, "as many bytes"),
    "a name that is no text": (not_utf8, "UTF-8"),
    "a text that is no text": (text_of_no_kind, "UTF-8"),
    "a value of a type that is none": (unknown_kind, "type must be one of ONNX's"),
    "two initializers of one name": (twice, "2 initializers called 'w'"),
    "two values of one name": (lambda m: m.graph.node[1].output.__setitem__(0, "h"), "2 values called 'h'"),
    "an initializer that a node makes": (shared, "'h' is an initializer and a node's output"),
    "no name": (lambda m: setattr(m.graph.initializer[0], "name", ""), "have names"),
    "sparse weights": (sparse, "dense"),
    "a function that calls itself": (lambda m: m.functions.append(called_by("r", "r")), r"l\.r → l\.r"),
    "functions in a circle": (lambda m: m.functions.extend([called_by("p", "q"), called_by("q", "p")]), "themselves"),
    "functions that double": (doubling, "2,147,483,650 nodes"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_a_model_that_makes_no_sense_is_refused_by_name(change, said, tmp_path):
    wrong = model()
    change(wrong)
    (tmp_path / "m.onnx").write_bytes(wrong.SerializeToString())
    for use in (check_sound, lowered, convert, lambda m: read(tmp_path / "m.onnx")):
        with pytest.raises(ModelError, match=said):
            use(wrong)


def test_a_model_that_makes_sense_is_left_alone():
    given = model()
    before = given.SerializeToString()
    check_sound(given)
    assert given.SerializeToString() == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("task", "no json"),
        ("task", '["x"]'),
        ("classes", "3"),
        ("inputs", '"X"'),
        ("lineage", "[1]"),
        ("task", "[" * 9999),
    ],
)
def test_metadata_of_another_type_than_the_facts_are_refused(key, value):
    given = model()
    given.metadata_props.add(key=f"ortpipe.{key}", value=value)
    with pytest.raises(ModelError, match=rf"{key}(\.0)?: "):
        read_metadata(given)
    with pytest.raises(ModelError, match=rf"{key}(\.0)?: "):
        convert(given)


def test_facts_of_another_type_or_without_what_they_must_have_are_refused():
    facts = convert(model()).facts.as_json()
    assert read_facts(facts) == read_facts(json.loads(json.dumps(facts)))
    for wrong in ({**facts, "metrics": {"l2": 1}}, {**facts, "task": 3}, {"task": "binary"}):
        with pytest.raises(ModelError):
            read_facts(wrong)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: setattr(m.graph.node[1], "op_type", "Ad"), "checker"),
        (lambda m: m.graph.node[0].input.__setitem__(0, "ghost"), "ghost"),
        (lambda m: m.graph.node[0].input.__setitem__(0, "s"), "topologically"),
        (lambda m: m.graph.output.pop(), "checker|output"),
        (lambda m: m.graph.node[2].input.append("h"), "match their definitions"),
        (lambda m: setattr(m.opset_import[0], "version", 0), "opset|checker"),
        (lambda m: setattr(m.opset_import[0], "version", 1000), "opset|checker"),
        (lambda m: setattr(m, "ir_version", 1000), "ir_version"),
    ],
    ids=["operator", "ghost", "circle", "no output", "arguments", "opset 0", "opset 1000", "IR 1000"],
)
def test_a_model_that_no_runtime_takes_is_refused(change, said):
    wrong = model()
    change(wrong)
    with pytest.raises(OrtpipeError, match=said):
        convert(wrong)


def mutated(content: bytes, seed: int) -> bytes:
    """Return a model's bytes with a few of them, or a piece, changed."""
    chance = random.Random(seed)
    made = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(made))
        match chance.randrange(4):
            case 0:
                made[place] = chance.randrange(256)
            case 1:
                del made[place : place + chance.randint(1, 9)]
            case 2:
                made[place:place] = made[chance.randrange(len(made)) :][: chance.randint(1, 9)]
            case _:
                made[place] ^= 1 << chance.randrange(8)
    return bytes(made)


@pytest.mark.parametrize("seed", range(4))
def test_no_changed_byte_ends_in_another_error_than_ours(seed, tmp_path):
    given = model()
    given.metadata_props.add(key="ortpipe.task", value='"regression"')
    content, file = given.SerializeToString(), tmp_path / "m.onnx"
    for number in range(25):
        file.write_bytes(mutated(content, 25 * seed + number))
        try:
            found = read(file)
            to_text(found)
            convert(found)
        except OrtpipeError:
            continue


def test_an_output_needs_no_declared_shape():
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 2] X) => (float[] Y) <float[2, 1] w = {1, 2}> { Y = MatMul(X, w) }"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    before = model.SerializeToString()
    check_valid(model)
    assert model.SerializeToString() == before
    assert convert(model).facts.parameters == ("w",)


def test_a_string_tensor_that_is_no_utf_8_is_rejected():
    graph = "g (float[1] x) => (float[1] y) { y = Relu(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')
    model.graph.initializer.add(name="s", data_type=onnx.TensorProto.STRING, dims=[1], string_data=[b"\xff"])
    with pytest.raises(ModelError, match="UTF-8"):
        check_sound(model)
