"""Pictures of graphs without Graphviz."""

from __future__ import annotations

import io
import itertools
import re

import numpy as np
import onnx
import onnx.parser
import pytest
from matplotlib.figure import Figure

from ortpipe.compat import plot_onnxs, to_dot
from ortpipe.compat.plotting import _diagram, _placed, _width
from ortpipe.errors import ModelError

HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'
CHAIN = onnx.parser.parse_model(
    HEADER
    + """g (float[N,2] X) => (float[N,1] Y, float[N,2] E) <float[2,1] w = {1, 2}>
    { one = Constant<value_float=1.0>() E = Exp(X) a = Add(E, one) b = Mul(a, a) c = Add(b, X) Y = MatMul(c, w) }"""
)
LOOP = onnx.parser.parse_model(
    HEADER
    + """g (float[N,3] X, float[3] k) => (float[N,3] Y)
    { Y = Scan(X) <num_scan_inputs = 1, body = each (float[3] row) => (float[3] out)
      { t = Mul(row, k) out = Neg(t) }> }"""
)
MODELS = {"chain": CHAIN, "loop": LOOP}


def test_the_dot_text_has_a_box_for_everything_and_an_arrow_for_every_use():
    text = to_dot(CHAIN)
    assert text.startswith('digraph "g" {')
    assert text.endswith("}")
    assert text.count("[label=") == 2 + 6 + 2
    assert text.count(" -> ") == 1 + 2 + 1 + 2 + 2 + 2
    assert '"in:w" -> "node:5"' in text


def test_every_box_that_an_arrow_names_is_there():
    for model in MODELS.values():
        text = to_dot(model)
        boxes = set(re.findall(r"^  (\".*?\") \[", text, re.M))
        ends = set(re.findall(r"^  (\".*?\") ->", text, re.M)) | set(re.findall(r"-> (\".*?\");", text))
        assert ends <= boxes


def test_a_subgraph_is_one_box_that_reads_what_it_captures():
    text = to_dot(LOOP)
    assert r"Scan\n2 nodes inside" in text
    assert '"in:k" -> "node:0"' in text


def test_names_are_escaped():
    model = onnx.ModelProto()
    model.CopyFrom(CHAIN)
    model.graph.name = 'a "quoted" \\ name'
    assert to_dot(model).startswith('digraph "a \\"quoted\\" \\\\ name" {')


def test_a_model_may_be_given_as_bytes_or_path(tmp_path):
    onnx.save(CHAIN, tmp_path / "m.onnx")
    assert to_dot(CHAIN) == to_dot(CHAIN.SerializeToString()) == to_dot(str(tmp_path / "m.onnx"))


@pytest.mark.parametrize("name", MODELS)
def test_arrows_point_down_and_boxes_do_not_overlap(name):
    drawing = _placed(_diagram(MODELS[name]))
    for a, b in drawing.diagram.arrows:
        assert drawing.places[a].layer < drawing.places[b].layer
    by_layer: dict[int, list[tuple[float, float]]] = {}
    for key, (_, label) in drawing.diagram.boxes.items():
        place = drawing.places[key]
        by_layer.setdefault(place.layer, []).append((place.x, _width(label)))
    for row in by_layer.values():
        row.sort()
        for (x, wide), (after, also) in itertools.pairwise(row):
            assert after - x >= (wide + also) / 2 - 1e-9


def test_several_graphs_are_drawn_side_by_side_with_their_titles(tmp_path):
    figure = Figure(figsize=(8, 5))
    axes = figure.subplots(1, 2)
    assert plot_onnxs(CHAIN, LOOP, ax=axes, title=["one", "two"]) is axes
    assert [axis.get_title() for axis in axes] == ["one", "two"]
    assert [len(axis.texts) for axis in axes] == [len(_diagram(m).boxes) + _segments(m) for m in (CHAIN, LOOP)]
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    assert buffer.getvalue().startswith(b"\x89PNG")


def _segments(model):
    """An arrow's head is an annotation without text."""
    return len(_diagram(model).arrows)


def test_without_axes_a_figure_is_made():
    import matplotlib as mpl

    with mpl.rc_context({"backend": "agg"}):
        import matplotlib.pyplot as plt

        axes = plot_onnxs(CHAIN, CHAIN)
        assert isinstance(axes, np.ndarray)
        assert len(axes) == 2
        plt.close(axes[0].figure)
        axis = plot_onnxs(CHAIN, title="t")
        assert axis.get_title() == "t"
        plt.close(axis.figure)


@pytest.mark.parametrize("arguments", [(), (CHAIN, CHAIN)])
def test_axes_that_do_not_fit_the_models_are_refused(arguments):
    with pytest.raises(ModelError, match="axes of its own"):
        plot_onnxs(*arguments, ax=Figure().add_subplot())


def test_drawing_leaves_the_model_alone():
    before = CHAIN.SerializeToString()
    to_dot(CHAIN)
    plot_onnxs(CHAIN, ax=Figure().add_subplot())
    assert CHAIN.SerializeToString() == before
