"""Pictures of graphs: DOT text, and matplotlib drawings in layers; neither needs Graphviz."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.errors import ModelError
from ortpipe.graph import query

COLOURS = {"input": "#cfe8cf", "initializer": "#fde7b0", "node": "#d6e4f5", "output": "#f5cfcf"}
LONGEST = 26  # characters of a line in a box
SWEEPS = 8


class Diagram(NamedTuple):
    """What is drawn: boxes by id, and arrows between them."""

    boxes: dict[str, tuple[str, str]]  # id → (kind, label of one or two lines)
    arrows: list[tuple[str, str]]


def to_dot(onx: onnx.ModelProto | bytes | str) -> str:
    """Return a graph in the DOT language, one box for each input, initializer, node and output.

    Subgraphs are one box with their number of nodes. The original wrote the same kind of text.

    Args:
        onx: a model, its bytes, or the path of an .onnx file.

    >>> print(to_dot(onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
    ...   g (float[N,2] X) => (float[N,1] Y) <float[2,1] w = {1, 2}> { Y = MatMul(X, w) }''')))
    digraph "g" {
      node [shape=box, style="rounded,filled"];
      "in:X" [label="X\\nfloat[N, 2]", fillcolor="#cfe8cf"];
      "in:w" [label="w\\nfloat[2, 1]", fillcolor="#fde7b0"];
      "node:0" [label="MatMul", fillcolor="#d6e4f5"];
      "out:Y" [label="Y\\nfloat[N, 1]", fillcolor="#f5cfcf"];
      "in:X" -> "node:0";
      "in:w" -> "node:0";
      "node:0" -> "out:Y";
    }
    """
    model = _model(onx)
    diagram = _diagram(model)
    lines = [
        f'  {_quoted(key)} [label={_quoted(label)}, fillcolor="{COLOURS[kind]}"];'
        for key, (kind, label) in diagram.boxes.items()
    ]
    lines += [f"  {_quoted(a)} -> {_quoted(b)};" for a, b in diagram.arrows]
    head = [f"digraph {_quoted(model.graph.name)} {{", '  node [shape=box, style="rounded,filled"];']
    return "\n".join([*head, *lines, "}"])


def plot_onnxs(*onx: onnx.ModelProto | bytes | str, ax: Any = None, title: str | Sequence[str] | None = None) -> Any:
    """Draw graphs side by side, from inputs above to outputs below, and return the axes.

    Args:
        onx: models, their bytes, or paths of .onnx files.
        ax: the axes to draw on, one for each model; by default those of a new pyplot figure.
        title: a title, or one for each model.

    Returns:
        The axes of one model, or an array of axes of several.

    Raises:
        ModelError: no model, or not as many axes or titles as models.

    >>> from matplotlib.figure import Figure
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
    ...   g (float[N,2] X) => (float[N,2] Y) { Y = Exp(X) }''')
    >>> [text.get_text() for text in plot_onnxs(model, ax=Figure().add_subplot()).texts if text.get_text()]
    ['X\\nfloat[N, 2]', 'Exp', 'Y\\nfloat[N, 2]']
    """
    models = [_model(o) for o in onx]
    drawings = [_placed(_diagram(model)) for model in models]
    if ax is None and models:
        import matplotlib.pyplot as plt

        wide = sum(_size(d)[0] for d in drawings)
        high = max(_size(d)[1] for d in drawings)
        _, ax = plt.subplots(1, len(models), figsize=(max(4.0, wide), max(3.0, high)), layout="constrained")
    axes = list(np.ravel(np.asarray(ax, dtype=object)))
    titles = [title] * len(models) if title is None or isinstance(title, str) else list(title)
    if not models or len(axes) != len(models) or len(titles) != len(models):
        raise ModelError(
            "plot_onnxs draws each model on axes of its own.",
            got=f"{len(models)} models, {len(axes)} axes, {len(titles)} titles",
            fix="Give at least one model, and as many axes and titles as models, or none.",
        )
    for drawing, axis, text in zip(drawings, axes, titles, strict=True):
        _draw(drawing, axis)
        axis.set_title(text or "")
    return ax


class Place(NamedTuple):
    """Where a box stands: the middle, in units of a character's width and of a layer's height."""

    x: float
    layer: int


class Drawing(NamedTuple):
    """A diagram with a place for each box, and the places that each arrow passes."""

    diagram: Diagram
    places: dict[str, Place]
    routes: list[list[str]]


def _model(onx: onnx.ModelProto | bytes | str) -> onnx.ModelProto:
    if isinstance(onx, onnx.ModelProto):
        return onx
    return onnx.load_model_from_string(onx) if isinstance(onx, bytes) else onnx.load(onx)


def _diagram(model: onnx.ModelProto) -> Diagram:
    graph = ir.from_proto(model).graph
    boxes: dict[str, tuple[str, str]] = {}
    arrows: list[tuple[str, str]] = []
    sources: dict[ir.Value, str] = {}
    for value in dict.fromkeys((*graph.inputs, *graph.initializers.values())):
        kind = "initializer" if value.is_initializer() else "input"  # a parameter may be both
        sources[value] = f"in:{value.name}"
        boxes[sources[value]] = (kind, _label(value))
    for number, node in enumerate(graph):
        key = f"node:{number}"
        inner = sum(len(g) for g in query.subgraphs(node))
        constant = node.op_type == "Constant" and node.outputs[0] is not None
        label = _constant(node) if constant else f"{node.op_type}\n{inner} nodes inside" if inner else node.op_type
        boxes[key] = ("initializer" if constant else "node", label)
        read = [v for v in (*node.inputs, *query.captured(node)) if v is not None and v in sources]
        arrows += [(sources[value], key) for value in dict.fromkeys(read)]
        sources |= dict.fromkeys(node.outputs, key)
    for value in graph.outputs:
        boxes[f"out:{value.name}"] = ("output", _label(value))
        arrows.append((sources[value], f"out:{value.name}"))
    return Diagram(boxes, arrows)


def _label(value: ir.Value) -> str:
    dtype = value.dtype.name.lower() if value.dtype is not None else "?"
    shape = ", ".join(str(d if isinstance(d, int) else d.value or "?") for d in value.shape) if value.shape else ""
    return f"{value.name}\n{dtype}[{shape}]"


def _constant(node: ir.Node) -> str:
    tensor = ir.convenience.get_const_tensor(node.outputs[0])
    if tensor is None:
        return "Constant"
    few = tensor.size <= 4
    return f"Constant\n{tensor.numpy().tolist()}" if few else f"Constant\n{tensor.dtype.name.lower()}{tensor.shape}"


def _placed(diagram: Diagram) -> Drawing:
    """Give each box a layer (the longest way from an input) and an order that keeps arrows short."""
    layer = dict.fromkeys(diagram.boxes, 0)
    for a, b in diagram.arrows:  # in the graph's own order: a node's arrows come before those of its readers
        layer[b] = max(layer[b], layer[a] + 1)
    for key, (kind, _) in diagram.boxes.items():  # weights stand right above what reads them
        readers = [layer[b] for a, b in diagram.arrows if a == key]
        if kind == "initializer" and readers:
            layer[key] = min(readers) - 1
    routes, levels = [], dict(layer)
    for number, (a, b) in enumerate(diagram.arrows):  # a long arrow has a place of its own in each layer it passes
        between = [f"pass:{number}:{at}" for at in range(layer[a] + 1, layer[b])]
        levels |= {key: int(key.rsplit(":", 1)[1]) for key in between}
        routes.append([a, *between, b])
    rows: list[list[str]] = [[] for _ in range(max(levels.values(), default=0) + 1)]
    for key, at in levels.items():
        rows[at].append(key)
    near: dict[str, list[str]] = {key: [] for key in levels}
    for route in routes:
        for a, b in itertools.pairwise(route):
            near[a].append(b)
            near[b].append(a)
    width = {key: _width(diagram.boxes[key][1]) if key in diagram.boxes else 2.0 for key in levels}
    x = dict.fromkeys(levels, 0.0)
    for row in rows:
        _spread(row, {key: float(i) for i, key in enumerate(row)}, width, x)
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            wanted = {key: sum(x[n] for n in near[key]) / len(near[key]) if near[key] else x[key] for key in row}
            row.sort(key=lambda key: wanted[key])
            _spread(row, wanted, width, x)
    return Drawing(diagram, {key: Place(x[key], at) for key, at in levels.items()}, routes)


def _spread(row: Sequence[str], wanted: dict[str, float], width: dict[str, float], x: dict[str, float]) -> None:
    """Put a row's boxes as near to where they are wanted as they can stand side by side."""
    edge = float("-inf")
    for key in row:
        x[key] = max(wanted[key], edge + width[key] / 2)
        edge = x[key] + width[key] / 2
    shift = sum(wanted[key] - x[key] for key in row) / max(len(row), 1)
    for key in row:
        x[key] += shift


def _width(label: str) -> float:
    return max(len(_cut(line)) for line in label.split("\n")) + 4.0


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _size(drawing: Drawing) -> tuple[float, float]:
    """Return the inches that a drawing wants."""
    ends = [p.x + side * 16 for p in drawing.places.values() for side in (-1, 1)]
    layers = 1 + max((p.layer for p in drawing.places.values()), default=0)
    return 0.075 * (max(ends, default=1) - min(ends, default=0)), 0.7 * layers + 0.5


def _draw(drawing: Drawing, axes: Any) -> None:
    for route in drawing.routes:
        points = [(drawing.places[key].x, -drawing.places[key].layer) for key in route]
        axes.plot(*zip(*points, strict=True), color="0.55", linewidth=0.9, zorder=1)
        (x0, y0), (x1, y1) = points[-2:]
        middle = (x0 + 0.55 * (x1 - x0), y0 + 0.55 * (y1 - y0))
        axes.annotate("", middle, points[-2], arrowprops={"arrowstyle": "-|>", "color": "0.55", "lw": 0.9}, zorder=1)
    for key, (kind, label) in drawing.diagram.boxes.items():
        place = drawing.places[key]
        text = "\n".join(_cut(line) for line in label.split("\n"))
        box = {"boxstyle": "round,pad=0.35", "facecolor": COLOURS[kind], "edgecolor": "0.45", "linewidth": 0.7}
        axes.text(place.x, -place.layer, text, ha="center", va="center", fontsize=8, bbox=box, zorder=2)
    ends = [place.x for place in drawing.places.values()] or [0.0]
    axes.set_xlim(min(ends) - 16, max(ends) + 16)
    axes.set_ylim(-0.6 - max(place.layer for place in drawing.places.values()), 0.6)
    axes.set_axis_off()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
