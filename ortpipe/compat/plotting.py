"""Graphs as DOT text and as layered matplotlib drawings; neither needs Graphviz."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ortpipe.errors import ConfigError
from ortpipe.graph import draw, layers

COLOURS = {"input": "#cfe8cf", "parameter": "#fde7b0", "constant": "#fde7b0", "node": "#d6e4f5", "output": "#f5cfcf"}
LONGEST = 26  # the largest number of characters of a line in a box
SPACE = 6  # characters between two boxes
INCHES = (0.075, 0.7)  # a character's width, a layer's height

Position = tuple[float, int]  # a box's center, in characters from the center of its layer, and its layer


def to_dot(onx: onnx.ModelProto | bytes | str) -> str:
    """Return a graph in the DOT language: with a box for each input, initializer, node, output and subgraph.

    Args:
        onx: a model, its bytes, or the path of an .onnx file.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
    ...   g (float[N,2] X) => (float[N,1] Y) <float[2,1] w = {1, 2}> { Y = MatMul(X, w) }''')
    >>> print("\\n".join(to_dot(model).splitlines()[-4:]))
      n0 -> n2 [label="X"];
      n1 -> n2 [label="w"];
      n2 -> n3 [label="Y"];
    }
    """
    return draw.to_dot(_model(onx))


def plot_onnxs(
    *onx: onnx.ModelProto | bytes | str,
    ax: Any = None,
    dpi: float | None = None,
    temp_dot: str | os.PathLike[str] | None = None,
    temp_img: str | os.PathLike[str] | None = None,
    show: bool = False,
    title: str | Sequence[str] | None = None,
) -> Any:
    """Draw graphs side by side, from inputs above to outputs below, and return the axes.

    Args:
        onx: models, their bytes, or paths of .onnx files.
        ax: the axes to draw on, one for each model; by default, and for `new`, those of a new pyplot figure.
        dpi: the resolution of a new figure; by default matplotlib's.
        temp_dot: a file to write the graphs to in the DOT language.
        temp_img: a file to write the figure to.
        show: call `pyplot.show()`.
        title: the model's title, or one above several models; or a list of titles for the first models.

    Returns:
        The axes of one model, or an array of axes of several.

    Raises:
        ConfigError: no model, not as many axes as models, or more titles.

    Where the original differs: Graphviz drew (and had to be installed); one model went on the current axes by default.

    >>> from matplotlib.figure import Figure
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
    ...   g (float[N,2] X) => (float[N,2] Y) { Y = Exp(X) }''')
    >>> [text.get_text() for text in plot_onnxs(model, ax=Figure().add_subplot()).texts if text.get_text()]
    ['X\\nfloat[N, 2]', 'Exp', 'Y\\nfloat[N, 2]']
    """
    models = [_model(model) for model in onx]
    drawings = [draw.Drawing(model) for model in models]
    positions = [_positions(drawing) for drawing in drawings]
    fresh = (ax is None or (isinstance(ax, str) and ax == "new")) and drawings
    if fresh or show:
        import matplotlib.pyplot as plt
    if fresh:
        sides, depths = zip(*map(_extent, positions), strict=True)
        size = max(4.0, 2 * INCHES[0] * sum(sides)), max(3.0, INCHES[1] * (max(depths) + 2))
        _, ax = plt.subplots(1, len(drawings), figsize=size, dpi=dpi, layout="constrained")
    axes = list(np.ravel(np.asarray(ax, dtype=object)))
    titles = list(title or ()) if not isinstance(title, str) else [title] if len(drawings) == 1 else []
    if not drawings or len(axes) != len(drawings) or len(titles) > len(drawings):
        raise ConfigError(
            "plot_onnxs needs one axes per model.",
            got=f"{len(drawings)} models, {len(axes)} axes, {len(titles)} titles",
            fix="Give at least one model, as many axes as models, and no more titles.",
        )
    for drawing, position, axis, text in itertools.zip_longest(drawings, positions, axes, titles):
        _draw(drawing, position, axis)
        axis.set_title(text or "")
    figure = axes[0].get_figure()
    if isinstance(title, str) and not titles:
        figure.suptitle(title)
    if temp_dot is not None:
        Path(temp_dot).write_text("\n".join(map(draw.to_dot, models)), encoding="utf-8")
    if temp_img is not None:
        figure.savefig(temp_img)
    if show:
        plt.show()
    return ax


def _model(onx: onnx.ModelProto | bytes | str) -> onnx.ModelProto:
    if isinstance(onx, onnx.ModelProto):
        return onx
    return onnx.load_model_from_string(onx) if isinstance(onx, bytes) else onnx.load(onx)


def _boxes(box: draw.Box) -> dict[int, tuple[draw.Kind, str]]:
    """Return the nodes of a graph and its subgraphs by number; edges go from lower to higher numbers."""
    return box.nodes | {number: node for inner in box.inner for number, node in _boxes(inner).items()}


def _positions(drawing: draw.Drawing) -> dict[int, Position]:
    """Return each box's position, in the layers of an SVG picture."""
    boxes, positions = _boxes(drawing.box), dict[int, Position]()
    edges = sorted({(a, b) for a, b, _ in drawing.edges})
    fed, free = {b for _, b in edges}, ("input", "parameter", "constant")
    rows = layers(len(boxes), edges, [boxes[n][0] in free and n not in fed for n in range(len(boxes))])
    for depth, row in enumerate(rows):
        widths = [max(map(len, _lines(boxes[n][1]))) + SPACE for n in row]
        right = np.cumsum(widths) - sum(widths) / 2
        positions |= {n: (float(end - width / 2), depth) for n, end, width in zip(row, right, widths, strict=True)}
    return positions


def _lines(label: str) -> list[str]:
    return [line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…" for line in label.split("\n")]


def _extent(positions: dict[int, Position]) -> tuple[float, int]:
    """Return half a drawing's width in characters, and its lowest layer."""
    widest = max((abs(x) for x, _ in positions.values()), default=0)
    return widest + LONGEST / 2 + SPACE, max((layer for _, layer in positions.values()), default=0)


def _draw(drawing: draw.Drawing, positions: dict[int, Position], axes: Any) -> None:
    for a, b, _ in drawing.edges:
        (x0, y0), (x1, y1) = positions[a], positions[b]
        bend = 0.0 if y1 - y0 == 1 else 0.25  # around the boxes in between
        arrow = {"arrowstyle": "-|>", "color": "0.55", "lw": 0.9, "connectionstyle": f"arc3,rad={bend}", "shrinkB": 14}
        axes.annotate("", (x1, -y1), (x0, -y0), arrowprops=arrow, zorder=1)
    for number, (kind, label) in _boxes(drawing.box).items():
        x, y = positions[number]
        box = {"boxstyle": "round,pad=0.35", "facecolor": COLOURS[kind], "edgecolor": "0.45", "linewidth": 0.7}
        axes.text(x, -y, "\n".join(_lines(label)), ha="center", va="center", fontsize=8, bbox=box, zorder=2)
    side, depth = _extent(positions)
    axes.set(xlim=(-side, side), ylim=(-0.6 - depth, 0.6))
    axes.set_axis_off()
