"""Graphs as Mermaid and DOT: every value has an arrow, subgraphs have boxes, names cannot break the syntax."""

from __future__ import annotations

import re
import shutil
import subprocess

import numpy as np
import onnx
import pytest

from ortpipe.graph.pictures.draw import Drawing, to_dot, to_mermaid

CHAIN = """<ir_version: 10, opset_import: ["": 21]> g (float[N, 3] X) => (float[N, 1] y)
  <float[3, 1] w = {1, 2, 3}, float[1] half = {0.5}> { s = Mul(half, half) h = MatMul(X, w) y = Add(h, s) }"""
BRANCH = """<ir_version: 10, opset_import: ["": 21]> g (float[2] X, bool c) => (float[2] y)
  { y = If(c) <then_branch = t () => (float[2] a) { a = Neg(X) }, else_branch =
    e () => (float[2] b) { b = Abs(X) }> }"""


def test_every_edge_ends_at_nodes_and_carries_its_value() -> None:
    drawn = Drawing(onnx.parser.parse_model(CHAIN), ("w",))
    labels = {number: label.splitlines()[0] for number, (_, label) in drawn.box.nodes.items()}
    arrows = {(labels[a], labels[b], name) for a, b, name in drawn.edges}
    assert arrows == {
        ("half", "Mul", "half"),
        ("X", "MatMul", "X"),
        ("w", "MatMul", "w"),
        ("MatMul", "Add", "h"),
        ("Mul", "Add", "s"),
        ("Add", "y", "y"),
    }


def test_parameters_are_told_from_constants() -> None:
    drawn = Drawing(onnx.parser.parse_model(CHAIN), ("w",))
    kinds = {label.splitlines()[0]: kind for kind, label in drawn.box.nodes.values()}
    assert (kinds["w"], kinds["half"], kinds["X"], kinds["y"]) == ("parameter", "constant", "input", "output")


def test_branches_are_boxes_that_read_from_around_them() -> None:
    drawn = Drawing(onnx.parser.parse_model(BRANCH))
    assert [box.title for box in drawn.box.inner] == ["If: then_branch", "If: else_branch"]
    [x] = [number for number, (_, label) in drawn.box.nodes.items() if label.startswith("X")]
    readers = [b for a, b, name in drawn.edges if name == "X"]
    inner = {n: label for box in drawn.box.inner for n, (_, label) in box.nodes.items()}
    assert sorted(inner[b] for b in readers) == ["Abs", "Neg"]
    assert all(a == x for a, _, name in drawn.edges if name == "X")


@pytest.mark.parametrize("text", [CHAIN, BRANCH])
def test_mermaid_declares_what_its_arrows_join_and_closes_its_boxes(text: str) -> None:
    lines = to_mermaid(onnx.parser.parse_model(text)).splitlines()
    assert lines[0] == "flowchart TD"
    declared = {found[1] for line in lines if (found := re.match(r' *(n\d+)[\[(]+".*"[\])]+$', line))}
    arrows = [re.match(r'  (n\d+) (?:-->\|".*"\||-\.->) (n\d+)$', line) for line in lines if "->" in line]
    assert arrows
    assert {end for arrow in arrows for end in arrow.groups()} <= declared
    assert sum("subgraph " in line for line in lines) == sum(line.strip() == "end" for line in lines)
    assert len(lines) == 1 + len(declared) + len(arrows) + 2 * sum("subgraph " in line for line in lines)


def test_names_cannot_break_the_syntax() -> None:
    model = onnx.parser.parse_model(CHAIN)
    odd = 'a "b" <c>|#\\'
    for node in model.graph.node:
        node.input[:] = [odd if name == "X" else name for name in node.input]
    model.graph.input[0].name = odd
    assert 'n0(["a #quot;b#quot; #lt;c#gt;#124;#35;\\<br/>float[N, 3]"])' in to_mermaid(model)
    assert r'n0 [label="a \"b\" <c>|#\\\nfloat[N, 3]"' in to_dot(model)


def test_graphviz_takes_the_dot() -> None:
    if shutil.which("dot") is None:
        pytest.skip("needs Graphviz' program dot")
    for text in (CHAIN, BRANCH):
        dot = to_dot(onnx.parser.parse_model(text))
        done = subprocess.run(["dot", "-Tsvg"], input=dot.encode(), capture_output=True)
        assert done.returncode == 0, done.stderr
        assert b"<svg" in done.stdout


def test_a_drawing_leaves_the_model_as_it_is() -> None:
    model = onnx.parser.parse_model(CHAIN)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "unused"))
    before = model.SerializeToString()
    to_dot(model)
    assert model.SerializeToString() == before
