"""A graph as text, and as a Mermaid or DOT diagram with subgraphs as boxes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import onnx

from ortpipe.doors import later

if TYPE_CHECKING:
    import onnx_ir as ir
    from onnx_ir import to_proto
else:
    later(__name__)

from ortpipe.graph.core.protos import graphs

LARGE = 8  # the most numbers of a tensor that text shows
Kind = Literal["input", "parameter", "constant", "node", "output"]


@dataclass
class Box:
    """A graph's nodes by number, and the boxes of its subgraphs."""

    title: str
    nodes: dict[int, tuple[Kind, str]] = field(default_factory=dict)
    inner: list[Box] = field(default_factory=list)


class Drawing:
    """A model's numbered nodes in boxes, and its edges with the names of values.

    Initializers that are no parameters are constants.
    """

    def __init__(self, model: onnx.ModelProto, parameters: tuple[str, ...] = ()) -> None:
        self.edges: list[tuple[int, int, str]] = []
        self._parameters, self._numbers = frozenset(parameters), itertools.count()
        self.box = self._box(model.graph, model.graph.name or "graph", {})

    def _box(self, graph: onnx.GraphProto, title: str, outer: Mapping[str, int]) -> Box:
        box, number_by_name = Box(title), dict(outer)

        def add(kind: Kind, label: str) -> int:
            number = next(self._numbers)
            box.nodes[number] = (kind, label)
            return number

        weights = {tensor.name for tensor in graph.initializer}
        for value in (*(i for i in graph.input if i.name not in weights), *graph.initializer):
            weight_kind: Kind = "parameter" if value.name in self._parameters else "constant"
            kind: Kind = weight_kind if value.name in weights else "input"
            number_by_name[value.name] = add(kind, f"{value.name}\n{type_of(value)}")
        for node in graph.node:
            number = add("node", node.op_type)
            self.edges += [(number_by_name[name], number, name) for name in node.input if name in number_by_name]
            number_by_name |= {name: number for name in node.output if name}
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    inner = self._box(attribute.g, f"{node.op_type}: {attribute.name}", number_by_name)
                    inputs = [first for first, (kind, _) in inner.nodes.items() if kind == "input"]
                    self.edges += [(number, first, "") for first in inputs or [min(inner.nodes)]]
                    box.inner.append(inner)
        for value in graph.output:
            number = add("output", f"{value.name}\n{type_of(value)}")
            if value.name in number_by_name:
                self.edges.append((number_by_name[value.name], number, value.name))
        return box


MERMAID = {"input": '(["{}"])', "output": '(["{}"])', "parameter": '[("{}")]', "constant": '["{}"]', "node": '["{}"]'}
DOT = {
    "input": ' [label="{}", shape=ellipse];',
    "output": ' [label="{}", shape=ellipse];',
    "parameter": ' [label="{}", shape=cylinder, style=filled, fillcolor="#cfe8ff"];',
    "constant": ' [label="{}", shape=note];',
    "node": ' [label="{}", shape=box, style=rounded];',
}


def _lines(
    box: Box, indent: str, shapes: Mapping[str, str], around: tuple[str, str], escape: Callable[[str], str]
) -> Iterator[str]:
    """Yield a language's lines for nodes, and for boxes: their beginning and end are `around`."""
    for number, (kind, label) in box.nodes.items():
        yield f"{indent}n{number}{shapes[kind].format(escape(label))}"
    for i, inner in enumerate(box.inner):
        begin = around[0].format(number=f"{min(inner.nodes)}_{i}", title=escape(inner.title), indent=indent)
        yield f"{indent}{begin}"
        yield from _lines(inner, f"{indent}  ", shapes, around, escape)
        yield f"{indent}{around[1]}"


def to_mermaid(model: onnx.ModelProto, parameters: tuple[str, ...] = ()) -> str:
    """Return a model as a Mermaid flowchart."""
    drawn = Drawing(model, parameters)
    lines = _lines(drawn.box, "  ", MERMAID, ('subgraph g{number} ["{title}"]', "end"), _mermaid)
    arrows = [f'  n{a} -->|"{_mermaid(name)}"| n{b}' if name else f"  n{a} -.-> n{b}" for a, b, name in drawn.edges]
    return "\n".join(["flowchart TD", *lines, *arrows]) + "\n"


def to_dot(model: onnx.ModelProto, parameters: tuple[str, ...] = ()) -> str:
    """Return a model as a DOT graph, for Graphviz."""
    drawn = Drawing(model, parameters)
    lines = _lines(drawn.box, "  ", DOT, ('subgraph cluster_{number} {{\n{indent}  label="{title}";', "}"), _dot)
    styles = [f'label="{_dot(name)}"' if name else "style=dotted" for *_, name in drawn.edges]
    arrows = [f"  n{a} -> n{b} [{style}];" for (a, b, _), style in zip(drawn.edges, styles, strict=True)]
    fonts = '  graph [fontname="Helvetica"]; node [fontname="Helvetica"]; edge [fontname="Helvetica", fontsize=9];'
    return "\n".join(["digraph model {", fonts, *lines, *arrows, "}"]) + "\n"


def _mermaid(label: str) -> str:
    marks = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "|": "#124;", "`": "#96;", "\n": "<br/>"}
    return "".join(marks.get(letter, letter) for letter in label)


def _dot(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def to_text(model: onnx.ModelProto) -> str:
    """Return a model in ONNX's text form, with large initializers and constants as type and shape."""
    small, lines = onnx.ModelProto(), []
    small.CopyFrom(model)
    for graph in reversed([*graphs(small.graph)]):  # inner ones first
        tensors = {tensor.name: tensor for tensor in graph.initializer} | {
            node.output[0]: node.attribute[0].t
            for node in graph.node
            if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t")
        }
        large = {name: type_of(tensor) for name, tensor in tensors.items() if math.prod(tensor.dims) > LARGE}
        lines += [f"# {name}: {kind}" for name, kind in large.items()]
        for values, name_of in ((graph.initializer, lambda t: t.name), (graph.node, lambda n: "".join(n.output[:1]))):
            for place in reversed([i for i, value in enumerate(values) if name_of(value) in large]):
                del values[place]
    try:
        text = onnx.printer.to_text(small)
    except (UnicodeDecodeError, RuntimeError, onnx.shape_inference.InferenceError) as error:
        text = f"# ONNX's text form cannot show this model: {error}"
    return "\n".join([*lines, text]) + "\n"


def type_of(value: onnx.TensorProto | onnx.ValueInfoProto | ir.Value) -> str:
    """Return type and shape as text; a dimension without size and name is ?.

    >>> type_of(onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, ["N", 3, None]))
    'float[N, 3, ?]'
    """
    if isinstance(value, onnx.TensorProto):
        return f"{onnx.TensorProto.DataType.Name(value.data_type).lower()}{list(value.dims)}"
    if not isinstance(value, onnx.ValueInfoProto):
        value = to_proto(value)
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return str(kind).removesuffix("_type") if kind else "?"
    tensor = value.type.tensor_type
    name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    if not tensor.HasField("shape"):
        return f"{name}[…]"
    dims = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
    return f"{name}[{', '.join(dims)}]"
