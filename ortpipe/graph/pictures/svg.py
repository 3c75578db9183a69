"""A graph as an SVG picture: a box for each node or repeated block, from the inputs down to the outputs."""

from __future__ import annotations

import collections
import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from ortpipe.graph.pictures.draw import type_of

DRAWN_NODES = 40  # nodes that are all drawn
MOST_BOXES = 90  # boxes; if there are more, neighbours are merged
LONGEST_PERIOD, SEARCHED_NODES = 500, 6000  # nodes of a repeated block, and of a graph that is searched for one
BOLD, WORD, LINE, GAP = 8.0, 6.6, 15, 26  # pixels: a title's letter, another letter, a line's height, between boxes
LETTERS = 34  # of a line of text
RULES = {
    "": "background:#fff",
    "text": "font:11px system-ui,'DejaVu Sans',sans-serif;fill:#444;text-anchor:middle",
    ".t": "font-weight:600;font-size:12px;fill:#111",
    "rect": "fill:#f4f6f8;stroke:#8a97a5",
    ".io rect": "fill:#fff;stroke:#444",
    ".p rect": "fill:#dcebfb;stroke:#3b76b3",
    ".r rect": "fill:#fdf1d8;stroke:#b98a1d",
    "path": "fill:none;stroke:#9aa5b1",
}
# CSS rules apply to the whole page or notebook; these are limited to the graph
STYLE = "".join(f"{f'svg.ortpipe {which}'.rstrip()}{{{rule}}}" for which, rule in RULES.items())


@dataclass
class _Box:
    """A box of the picture: title, lines below it, the names of the values that it reads and makes."""

    title: str
    lines: list[str] = field(default_factory=list)
    kind: str = ""  # io, p (has trained parameters), r (several nodes)
    reads: list[str] = field(default_factory=list)
    makes: list[str] = field(default_factory=list)

    @property
    def width(self) -> float:
        return max(len(self.title) * BOLD, *(len(text) * WORD for text in self.lines), 0.0) + 16

    @property
    def height(self) -> float:
        return LINE * (1 + len(self.lines)) + 10


def to_svg(model: onnx.ModelProto, parameters: Sequence[str] = ()) -> str:
    """Return a model's graph as an SVG document: the same graph gives the same text.

    A block of nodes that repeats is one box with its operators; nodes with trained parameters name them. Constants are
    not drawn.
    """
    boxes = _boxes(model.graph, frozenset(parameters))
    edges = _edges(boxes)
    rows = layers(len(boxes), edges, [box.kind == "io" and not box.reads for box in boxes])
    places, width, height = _places(boxes, rows)
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" class="ortpipe" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}">',
        f"<style>{STYLE}</style>",
    ]
    for a, b in edges:
        (x0, y0), (x1, y1) = places[a], places[b]
        y0, y1 = y0 + boxes[a].height, y1
        half = (y1 - y0) / 2
        lines.append(
            f'<path d="M{x0:.0f} {y0:.0f}C{x0:.0f} {y0 + half:.0f} {x1:.0f} {y1 - half:.0f} {x1:.0f} {y1:.0f}"/>'
        )
    for box, (x, y) in zip(boxes, places, strict=True):
        left_edge, radius = x - box.width / 2, 12 if box.kind == "io" else 4
        lines.append(
            f'<g class="{box.kind}"><rect x="{left_edge:.0f}" y="{y:.0f}" width="{box.width:.0f}" '
            f'height="{box.height:.0f}" rx="{radius}"/>'
        )
        for i, text in enumerate((box.title, *box.lines)):
            style, shown = ' class="t"' if i == 0 else "", "".join(c if c.isprintable() else "?" for c in text)
            lines.append(f'<text x="{x:.0f}" y="{y + LINE * (i + 1):.0f}"{style}>{html.escape(shown)}</text>')
        lines.append("</g>")
    return "\n".join([*lines, "</svg>"]) + "\n"


def _boxes(graph: onnx.GraphProto, parameters: frozenset[str]) -> list[_Box]:
    weights = {tensor.name: tensor for tensor in graph.initializer}
    nodes = [node for node in graph.node if node.op_type != "Constant"]
    io = [_Box(_short(v.name), [type_of(v)], "io", [], [v.name]) for v in graph.input if v.name not in weights]
    if len(io) > DRAWN_NODES:
        io = [_Box(f"{len(io)} inputs", [], "io", [], [name for box in io for name in box.makes])]
    ends = [_Box(_short(v.name), [type_of(v)], "io", [v.name]) for v in graph.output]
    if len(ends) > DRAWN_NODES:
        ends = [_Box(f"{len(ends)} outputs", [], "io", [name for box in ends for name in box.reads])]
    groups = list(_groups(nodes, weights)) if len(nodes) > DRAWN_NODES else [(i, i + 1, 1) for i in range(len(nodes))]
    size = -(-len(groups) // MOST_BOXES)
    if size > 1:
        parts = [groups[i : i + size] for i in range(0, len(groups), size)]
        groups = [part[0] if len(part) == 1 else (part[0][0], part[-1][1], 1) for part in parts]
    return [*io, *(_box(nodes[first:end], times, parameters, weights) for first, end, times in groups), *ends]


def _box(
    nodes: Sequence[onnx.NodeProto], times: int, parameters: frozenset[str], weights: dict[str, onnx.TensorProto]
) -> _Box:
    reads = [name for node in nodes for name in node.input if name not in weights]
    reads += [name for node in nodes for inner in _inner(node) for name in inner]
    makes = [name for node in nodes for name in node.output if name]
    trained = [name for node in nodes for name in node.input if name in parameters]
    if len(nodes) == 1:
        [node] = nodes
        lines = [f"{_short(name)} {list(weights[name].dims)}" if name in weights else _short(name) for name in trained]
        lines += [f"{len(a.g.node)} nodes in {a.name}" for a in node.attribute if a.HasField("g")]
        return _Box(node.op_type, lines, "p" if trained else "", reads, makes)
    block = nodes[: len(nodes) // times]
    counts = sorted(collections.Counter(node.op_type for node in block).items(), key=lambda item: (-item[1], item[0]))
    words = [op if count == 1 else f"{count} {op}" for op, count in counts]
    lines = [", ".join(words[i : i + 3]) for i in range(0, min(len(words), 9), 3)]
    title = f"{times} × {len(block)} nodes" if times > 1 else f"{len(block)} nodes"
    lines += [f"{len(trained)} trained parameters"] if trained else []
    return _Box(title, lines, "r", reads, makes)


def _inner(node: onnx.NodeProto) -> Iterator[list[str]]:
    """Yield the names that each node of a node's subgraphs reads."""
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            for inner in graph.node:
                yield list(inner.input)
                yield from _inner(inner)


def _groups(nodes: Sequence[onnx.NodeProto], weights: dict[str, onnx.TensorProto]) -> Iterator[tuple[int, int, int]]:
    """Yield the nodes in order as (first, end, times): single ones, and repeated blocks."""
    codes: dict[object, int] = {}
    kinds = [(n.op_type, tuple(tuple(weights[name].dims) for name in n.input if name in weights)) for n in nodes]
    word = np.array([codes.setdefault(kind, len(codes)) for kind in kinds])

    def split(first: int, end: int) -> Iterator[tuple[int, int, int]]:
        best = (0, 0, 0, 0)  # nodes saved, start, period, repetitions
        for period in range(1, min((end - first) // 2, LONGEST_PERIOD) + 1):
            same = np.flatnonzero(np.diff(np.r_[0, word[first : end - period] == word[first + period : end], 0]))
            for begin, stop in same.reshape(-1, 2):
                times = (stop - begin) // period + 1
                best = max(best, ((times - 1) * period, -int(begin), -period, int(times))) if times > 1 else best
        saved, place, period, times = best[0], first - best[1], -best[2], best[3]
        if saved < 4:
            yield from ((i, i + 1, 1) for i in range(first, end))
            return
        yield from split(first, place)
        yield place, place + period * times, times
        yield from split(place + period * times, end)

    yield from split(0, len(nodes)) if len(nodes) <= SEARCHED_NODES else ((i, i + 1, 1) for i in range(len(nodes)))


def _edges(boxes: Sequence[_Box]) -> list[tuple[int, int]]:
    producers = {name: i for i, box in enumerate(boxes) for name in box.makes}
    return sorted(
        {(producers[name], i) for i, box in enumerate(boxes) for name in box.reads if producers.get(name, i) < i}
    )


def layers(count: int, edges: Sequence[tuple[int, int]], is_input: Sequence[bool]) -> list[list[int]]:
    """Return the boxes row by row: each below all that it reads, inputs right above their readers, lines short."""
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        before[b].append(a)
        after[a].append(b)
    row = [0] * count
    for i in range(count):  # edges lead to later boxes
        row[i] = max((row[a] + 1 for a in before[i]), default=0 if is_input[i] else 1)
    for i in range(count):
        if is_input[i] and after[i]:
            row[i] = min(row[b] for b in after[i]) - 1
    rows: list[list[int]] = [[] for _ in range(max(row, default=0) + 1)]
    for i in range(count):
        rows[row[i]].append(i)
    x = [0.0] * count
    for turn in range(4):
        near = before if turn % 2 == 0 else after
        for line in rows if turn % 2 == 0 else rows[::-1]:
            line.sort(key=lambda i: (sum(x[a] for a in near[i]) / len(near[i]) if near[i] else x[i], i))
            for place, i in enumerate(line):
                x[i] = place - (len(line) - 1) / 2
    return [line for line in rows if line]


def _places(boxes: Sequence[_Box], rows: Sequence[Sequence[int]]) -> tuple[list[tuple[float, float]], float, float]:
    """Return the middle of each box's upper edge, and the picture's size."""
    widths = [sum(boxes[i].width + GAP for i in line) for line in rows]
    width, y = max(widths, default=0.0) + GAP, float(GAP)
    places = [(0.0, 0.0)] * len(boxes)
    for line, wide in zip(rows, widths, strict=True):
        x = (width - wide) / 2 + GAP / 2
        for i in line:
            places[i] = (x + boxes[i].width / 2, y)
            x += boxes[i].width + GAP
        y += max(boxes[i].height for i in line) + 1.3 * GAP
    return places, width, y


def _short(name: str) -> str:
    return name if len(name) <= LETTERS else f"…{name[1 - LETTERS :]}"
