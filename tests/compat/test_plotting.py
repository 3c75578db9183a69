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
from ortpipe.errors import ConfigError

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


def boxes_and_arrows(text):
    return re.findall(r"^ +(n\d+) \[label", text, re.M), re.findall(r"^ +(n\d+) -> (n\d+)", text, re.M)


def test_the_dot_text_has_a_box_for_everything_and_an_arrow_for_every_use():
    boxes, arrows = boxes_and_arrows(to_dot(CHAIN))
    assert len(boxes) == len(set(boxes)) == 2 + 6 + 2
    assert len(arrows) == 1 + 2 + 2 + 2 + 2 + 2
    assert re.search(r'n1 -> n\d+ \[label="w"\];', to_dot(CHAIN))


@pytest.mark.parametrize("name", MODELS)
def test_every_box_that_an_arrow_names_is_there(name):
    boxes, arrows = boxes_and_arrows(to_dot(MODELS[name]))
    assert {end for arrow in arrows for end in arrow} <= set(boxes)


def test_a_subgraph_reads_what_it_captures():
    assert "subgraph" in to_dot(LOOP)
    assert "n1 -> " in to_dot(LOOP)
    assert '[label="k"];' in to_dot(LOOP)


def test_names_are_escaped():
    model = onnx.ModelProto()
    model.CopyFrom(CHAIN)
    model.graph.output[1].name = model.graph.node[1].output[0] = model.graph.node[2].input[0] = 'a "b" \\ c'
    assert 'label="a \\"b\\" \\\\ c' in to_dot(model)


def test_a_model_may_be_given_as_bytes_or_path(tmp_path):
    onnx.save(CHAIN, tmp_path / "m.onnx")
    assert to_dot(CHAIN) == to_dot(CHAIN.SerializeToString()) == to_dot(str(tmp_path / "m.onnx"))


@pytest.fixture
def agg():
    import matplotlib as mpl

    with mpl.rc_context({"backend": "agg"}):
        import matplotlib.pyplot as plt

        yield
        plt.close("all")


@pytest.mark.parametrize("name", MODELS)
def test_arrows_point_down_and_boxes_do_not_overlap(name, agg):
    axes = plot_onnxs(MODELS[name])
    axes.figure.canvas.draw()
    labels = [text for text in axes.texts if text.get_text()]
    arrows = [text for text in axes.texts if not text.get_text()]
    assert (len(labels), len(arrows)) == tuple(map(len, boxes_and_arrows(to_dot(MODELS[name]))))
    for arrow in arrows:
        assert arrow.xy[1] < arrow.xyann[1]
    frames = [text.get_bbox_patch().get_window_extent() for text in labels]
    for one, other in itertools.combinations(frames, 2):
        assert not one.overlaps(other)


def test_several_graphs_are_drawn_side_by_side_with_their_titles():
    figure = Figure(figsize=(8, 5))
    axes = figure.subplots(1, 2)
    assert plot_onnxs(CHAIN, LOOP, ax=axes, title=["one", "two"]) is axes
    assert [axis.get_title() for axis in axes] == ["one", "two"]
    assert all(axis.texts for axis in axes)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    assert buffer.getvalue().startswith(b"\x89PNG")


def test_without_axes_a_figure_is_made(agg):
    axes = plot_onnxs(CHAIN, CHAIN)
    assert isinstance(axes, np.ndarray)
    assert len(axes) == 2
    assert plot_onnxs(CHAIN, title="t").get_title() == "t"


def test_a_new_figure_has_the_title_above_several_graphs_and_its_own_resolution(agg):
    one = plot_onnxs(CHAIN, ax="new", title="t", dpi=40)
    both = plot_onnxs(CHAIN, LOOP, ax="new", title="both")
    some = plot_onnxs(CHAIN, LOOP, title=["only the first"])
    assert one.figure is not both[0].figure
    assert (one.get_title(), one.figure.dpi) == ("t", 40)
    assert (both[0].figure.get_suptitle(), [axis.get_title() for axis in both]) == ("both", ["", ""])
    assert [axis.get_title() for axis in some] == ["only the first", ""]
    with pytest.raises(ValueError, match="3 titles"):
        plot_onnxs(CHAIN, LOOP, title=["a", "b", "c"])


def test_text_and_picture_are_written_and_shown_where_asked(agg, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(1))
    plot_onnxs(CHAIN, LOOP, temp_dot=tmp_path / "g.dot", temp_img=tmp_path / "g.png", show=True)
    assert (tmp_path / "g.dot").read_text() == f"{to_dot(CHAIN)}\n{to_dot(LOOP)}"
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")
    assert shown == [1]


@pytest.mark.parametrize("arguments", [(), (CHAIN, CHAIN)])
def test_axes_that_do_not_fit_the_models_are_refused(arguments):
    with pytest.raises(ConfigError, match="one axes per model"):
        plot_onnxs(*arguments, ax=Figure().add_subplot())


def test_drawing_leaves_the_model_alone():
    before = CHAIN.SerializeToString()
    to_dot(CHAIN)
    plot_onnxs(CHAIN, ax=Figure().add_subplot())
    assert CHAIN.SerializeToString() == before
