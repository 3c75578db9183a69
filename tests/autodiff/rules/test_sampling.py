from __future__ import annotations

import itertools

import numpy as np
import pytest
from autodiff.numeric import worst_error
from autodiff.rules.onnx_cases import disagreement, model_of, session
from engines import expanded, native
from onnx.reference import ReferenceEvaluator

from ortpipe.errors import DeriveError

# Of interpolations that the runtime's own operator gives: 1.5e-6 was the worst. Central differences in float64: 2e-9.
FORWARD, GRADIENT = 5e-6, 1e-6
MODES = itertools.product(("linear", "cubic", "nearest"), ("zeros", "border", "reflection"))
GRIDS = [(20, mode, padding, i % 2, ("N", 2, "H", 5), "N,1,3") for i, (mode, padding) in enumerate(MODES)]
GRIDS += [(16, "bilinear", "zeros", 1, (1, 1, 3, 4), "1,2,2"), (16, "bicubic", "reflection", 0, (1, 1, 3, 4), "1,2,2")]
GRIDS += [(20, "linear", "reflection", 0, (2, 1, 3, 4, 2), "2,1,1,3")]


def check(model, feeds):
    """Compare the expansion with onnxruntime's own operator, and its gradient with central differences.

    Of a cubic's border with onnx.reference's: onnxruntime moves both coordinates where only one lies outside.
    """
    written = expanded(model, tuple(feeds))
    assert {"GridSample", "RoiAlign"}.isdisjoint(n.op_type for n in written.graph.node)
    attributes = [a.s for a in model.graph.node[0].attribute]
    other = b"cubic" in attributes and b"border" in attributes
    got, [expected] = (
        session(written).run(None, feeds)[0],
        (ReferenceEvaluator if other else session)(model).run(None, feeds),
    )
    np.testing.assert_allclose(got, expected, atol=FORWARD)
    assert worst_error(written, feeds) < GRADIENT


@pytest.mark.parametrize(("opset", "mode", "padding", "corners", "dims", "out"), GRIDS)
def test_an_image_sampled_on_a_grid_gives_both_their_gradients(opset, mode, padding, corners, dims, out):
    axes = len(dims) - 2
    model = model_of(
        f"""g (float[{",".join(map(str, dims))}] x, float[{out},{axes}] g) => (float[{",".join("abcde"[: axes + 2])}] y)
        {{ y = GridSample<mode="{mode}", padding_mode="{padding}", align_corners={corners}>(x, g) }}""",
        opset,
    )
    rng, sizes = np.random.default_rng(2), {"N": 2, "H": 4}
    x = rng.standard_normal([sizes.get(d, d) for d in dims]).astype(np.float32)
    grid = rng.uniform(-1.7, 1.7, [*(sizes.get(d) or int(d) for d in out.split(",")), axes]).astype(np.float32)
    check(model, {"x": x, "g": grid})


REGIONS = """g (float[N,2,H,W] x, float[R,4] r, int64[R] b) => (float[e,f,h,w] y)
 {{ y = RoiAlign<output_height=1, output_width=2, spatial_scale=0.5, {}>(x, r, b) }}"""


@pytest.mark.parametrize(("mode", "ratio"), [("half_pixel", 0), ("output_half_pixel", 2)])
def test_the_means_of_regions_give_gradients_to_the_image_and_to_their_corners(mode, ratio):
    model = model_of(REGIONS.format(f'coordinate_transformation_mode="{mode}", sampling_ratio={ratio}'), 16)
    corners = np.array([[0.3, 1.1, 9.2, 8.7], [3.3, 2.9, 4.1, 14.2], [-7.1, 4.3, 5.2, 5.9]], np.float32)
    x = np.random.default_rng(2).standard_normal((2, 2, 5, 6)).astype(np.float32)
    check(model, {"x": x, "r": corners, "b": np.array([1, 0, 1])})


def test_the_maxima_of_regions_are_refused_by_name():
    model = model_of(REGIONS.format('mode="max"').replace("y = R", "z = R").replace("float[e,f,h,w] y", "float y"), 16)
    model.graph.node.append(model_of("g (float[N] z) => (float y) { y = ReduceSum<keepdims=0>(z) }").graph.node[0])
    with pytest.raises(DeriveError, match="RoiAlign"):
        native(model, "y", [], ["x"])


@pytest.mark.parametrize(("axes", "sizes", "corners"), [(2, (2, 1, 3, 4), 0), (3, (2, 1, 2, 3, 2), 1)])
def test_a_grid_gives_its_gradient_to_the_matrices_that_turn_it(axes, sizes, corners):
    model = model_of(
        f"""g (float[N,{axes},{axes + 1}] m) => (float[{",".join("abcde"[: axes + 2])}] y)
        <int64[{len(sizes)}] s = {{{",".join(map(str, sizes))}}}> {{ y = AffineGrid<align_corners={corners}>(m, s) }}"""
    )
    feeds = {"m": np.random.default_rng(0).standard_normal((2, axes, axes + 1)).astype(np.float32)}
    assert worst_error(model, feeds, step=1, double=False) < FORWARD  # linear; onnx.reference computes it in float32
    assert disagreement(model, feeds) < FORWARD
