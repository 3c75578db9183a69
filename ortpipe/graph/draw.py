"""A graph as a picture's text: Mermaid or DOT, subgraphs as boxes of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import onnx

from ortpipe.graph.show import type_of

Kind = Literal["input", "parameter", "constant", "node", "output"]


@dataclass
class Box:
    """A graph's nodes, and the boxes of its subgraphs, by number."""

    title: str
    nodes: dict[int, tuple[Kind, str]] = field(default_factory=dict)
    inner: list[Box] = field(default_factory=list)


@dataclass
class Drawing:
    """Numbered nodes in boxes; an edge carries the value's name."""

    box: Box
    edges: list[tuple[int, int, str]]


def drawing(model: onnx.ModelProto, parameters: tuple[str, ...] = ()) -> Drawing:
    """Return a model's nodes and edges; float initializers that are no parameter, and other tensors, are constants."""
    edges: list[tuple[int, int, str]] = []
    numbers = iter(range(10**9))
    box = _box(model.graph, model.graph.name or "graph", {}, set(parameters), edges, numbers)
    return Drawing(box, edges)


def _box(
    graph: onnx.GraphProto,
    title: str,
    outer: Mapping[str, int],
    parameters: set[str],
    edges: list[tuple[int, int, str]],
    numbers: Iterator[int],
) -> Box:
    box, made = Box(title), dict(outer)

    def add(kind: Kind, label: str, value: str | None = None) -> int:
        number = next(numbers)
        box.nodes[number] = (kind, label)
        if value is not None:
            made[value] = number
        return number

    weights = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        if value.name not in weights:
            add("input", f"{value.name}\n{type_of(value)}", value.name)
    for tensor in graph.initializer:
        kind: Kind = "parameter" if tensor.name in parameters else "constant"
        add(kind, f"{tensor.name}\n{type_of(tensor)}", tensor.name)
    for node in graph.node:
        number = add("node", node.op_type)
        edges += [(made[name], number, name) for name in node.input if name in made]
        made |= {name: number for name in node.output if name}
        for attribute in node.attribute:
            if attribute.HasField("g"):
                inner = _box(attribute.g, f"{node.op_type}: {attribute.name}", made, parameters, edges, numbers)
                inputs = [first for first, (kind, _) in inner.nodes.items() if kind == "input"]
                edges += [(number, first, "") for first in inputs or [min(inner.nodes)]]
                box.inner.append(inner)
    for value in graph.output:
        number = next(numbers)
        box.nodes[number] = ("output", f"{value.name}\n{type_of(value)}")
        if value.name in made:
            edges.append((made[value.name], number, value.name))
    return box


SHAPES = {"input": '(["{}"])', "output": '(["{}"])', "parameter": '[("{}")]', "constant": '["{}"]', "node": '["{}"]'}
STYLES = {
    "input": "shape=ellipse",
    "output": "shape=ellipse",
    "parameter": 'shape=cylinder, style=filled, fillcolor="#cfe8ff"',
    "constant": "shape=note",
    "node": "shape=box, style=rounded",
}


def to_mermaid(model: onnx.ModelProto, parameters: tuple[str, ...] = ()) -> str:
    """Return a model as a Mermaid flowchart."""
    drawn = drawing(model, parameters)

    def lines(box: Box, indent: str) -> Iterator[str]:
        for number, (kind, label) in box.nodes.items():
            yield f"{indent}n{number}{SHAPES[kind].format(_mermaid(label))}"
        for i, inner in enumerate(box.inner):
            yield f'{indent}subgraph g{min(inner.nodes)}_{i} ["{_mermaid(inner.title)}"]'
            yield from lines(inner, f"{indent}  ")
            yield f"{indent}end"

    arrows = [f'  n{a} -->|"{_mermaid(name)}"| n{b}' if name else f"  n{a} -.-> n{b}" for a, b, name in drawn.edges]
    return "\n".join(["flowchart TD", *lines(drawn.box, "  "), *arrows]) + "\n"


def to_dot(model: onnx.ModelProto, parameters: tuple[str, ...] = ()) -> str:
    """Return a model as a DOT graph, for Graphviz."""
    drawn = drawing(model, parameters)

    def lines(box: Box, indent: str) -> Iterator[str]:
        for number, (kind, label) in box.nodes.items():
            yield f'{indent}n{number} [label="{_dot(label)}", {STYLES[kind]}];'
        for i, inner in enumerate(box.inner):
            yield f"{indent}subgraph cluster_{min(inner.nodes)}_{i} {{"
            yield f'{indent}  label="{_dot(inner.title)}";'
            yield from lines(inner, f"{indent}  ")
            yield f"{indent}}}"

    arrows = [
        f'  n{a} -> n{b} [label="{_dot(name)}"];' if name else f"  n{a} -> n{b} [style=dotted];"
        for a, b, name in drawn.edges
    ]
    fonts = '  graph [fontname="Helvetica"]; node [fontname="Helvetica"]; edge [fontname="Helvetica", fontsize=9];'
    head = ["digraph model {", fonts]
    return "\n".join([*head, *lines(drawn.box, "  "), *arrows, "}"]) + "\n"


def _mermaid(label: str) -> str:
    marks = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "|": "#124;", "`": "#96;", "\n": "<br/>"}
    return "".join(marks.get(letter, letter) for letter in label)


def _dot(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
