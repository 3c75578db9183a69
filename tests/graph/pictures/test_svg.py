"""Pictures of graphs: well-formed, the same for the same graph, and small for a large one that repeats."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import onnx
import pytest

from ortpipe.graph.pictures.svg import MOST_BOXES, _boxes, _edges, to_svg

SVG = "{http://www.w3.org/2000/svg}"


def blocks(count: int, extra: str = "") -> onnx.ModelProto:
    """Return a model of so many equal blocks of five nodes, each with weights of its own."""
    lines, weights, last = [], [], "X"
    for i in range(count):
        weights += [f"float[4, 4] w{i}", f"float[4] b{i}"]
        lines += [f"m{i} = MatMul({last}, w{i}) a{i} = Add(m{i}, b{i}) r{i} = Relu(a{i}) n{i} = Neg(r{i})"]
        lines += [f"y{i} = Add(n{i}, {last})"]
        last = f"y{i}"
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] X) => (float[N, 4] Y)
    <{", ".join(f"{w} = {{{', '.join(['1'] * (16 if w.startswith('float[4, 4]') else 4))}}}" for w in weights)}>
    {{ {" ".join(lines)} {extra} Y = Softmax({last}) }}"""
    return onnx.parser.parse_model(text)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_a_small_graph_shows_every_node_its_parameters_inputs_and_outputs() -> None:
    shown = texts(to_svg(blocks(2), ("w0", "b1")))
    assert [shown.count(name) for name in ("MatMul", "Add", "Relu", "Neg", "Softmax")] == [2, 4, 2, 2, 1]
    assert {"X", "Y", "float[N, 4]", "w0 [4, 4]", "b1 [4]"} <= set(shown)
    assert not {"w1 [4, 4]", "b0 [4]"} & set(shown)


def test_a_block_that_follows_itself_is_one_box_that_says_how_often() -> None:
    svg = to_svg(blocks(12), ("w0", "w1"))
    assert {"12 × 5 nodes", "2 Add, MatMul, Neg", "Relu", "2 trained parameters", "Softmax"} <= set(texts(svg))
    assert texts(svg).count("Relu") == 1
    assert svg == to_svg(blocks(12), ("w0", "w1"))


def test_a_large_graph_without_repeats_has_few_boxes() -> None:
    kinds = ["Relu", "Neg", "Exp", "Sigmoid", "Tanh", "Abs", "Floor"]
    lines, last = [], "X"
    for i in range(600):
        lines.append(f"z{i} = {kinds[(i * i + i // 7) % 7]}({last})")
        last = f"z{i}"
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[N] X) => (float[N] {last}) {{ {" ".join(lines)} }}'
    assert to_svg(onnx.parser.parse_model(text)).count("<rect") <= MOST_BOXES + 2


@pytest.mark.parametrize("name", ['a<b>&"c', "ä\u0007\ufffe"])
def test_any_name_gives_well_formed_text(name: str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N] X) => (float[N] Y) { Y = Neg(X) }'
    )
    model.graph.input[0].name = model.graph.node[0].input[0] = name
    assert len(texts(to_svg(model))) == 5


def test_boxes_are_joined_by_what_they_read_also_inside_subgraphs() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[N] X, bool c) => (float[N] Y) { h = Exp(X)
        Y = If(c) <then_branch = t () => (float[N] a) { a = Neg(h) },
                   else_branch = e () => (float[N] b) { b = Abs(X) }> }"""
    )
    assert "1 nodes in then_branch" in texts(to_svg(model))
    assert _edges(_boxes(model.graph, frozenset())) == [(0, 2), (0, 3), (1, 3), (2, 3), (3, 4)]


def test_every_box_is_inside_the_picture() -> None:
    lines = " ".join(f"a{i} = Neg(h) b{i} = Exp(a{i})" for i in range(4)) + " Y = Sum(b0, b1, b2, b3)"
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[N] X) => (float[N] Y) {{ h = Abs(X) {lines} }}'
    picture = ET.fromstring(to_svg(onnx.parser.parse_model(text)))
    boxes = [[float(rect.attrib[side]) for side in ("x", "width")] for rect in picture.iter(f"{SVG}rect")]
    width = float(picture.attrib["width"])
    assert all(x >= 0 and x + wide <= width for x, wide in boxes), boxes


def test_its_style_is_of_the_graph_alone_for_in_a_page_it_would_hold_everywhere():
    style = ET.fromstring(to_svg(blocks(2))).find(f"{SVG}style").text
    assert [rule for rule in style.split("}") if rule and not rule.startswith("svg.ortpipe")] == []
