from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from autodiff.numeric import worst_error
from autodiff.rules.onnx_cases import disagreement, gradients, model_of, worst_error_in_runtime
from engines import native
from plain_session import PlainSession
from sample import pairs

import ortpipe
from ortpipe.errors import DeriveError

# Worst seen: 3e-6 in float64 (onnx.reference rounds cubic weights to float32), 5e-6 in float32.
TOLERANCE, SINGLE = 1e-5, 5e-5
TRANSFORMATIONS = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")
MODES = (
    *(f'mode="nearest", nearest_mode="{n}"' for n in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
    'mode="linear"',
    'mode="cubic"',
)
WHOLE, BROKEN, SIZES = ("scales", (1, 1, 2, 3)), ("scales", (1, 1, 0.6, 1.3)), ("sizes", (2, 2, 7, 3))
FORMS = [*itertools.product(MODES, (WHOLE, BROKEN, SIZES))]
# (attributes, how, shape of x, opset)
VARIANTS = {
    **{
        f"{t}, {m}, by {how[0]} {how[1]}": (f'{m}, coordinate_transformation_mode="{t}"', how, (2, 2, 5, 4), 21)
        for t, (m, how) in itertools.product(TRANSFORMATIONS, FORMS)
        # the output's size before it is rounded decides for ONNX, after it for onnxruntime
        if not (t == "align_corners" and how == BROKEN)
    },
    "line": ('mode="linear"', ("scales", (1, 1, 2)), (2, 2, 5), 21),
    "line, nearest": ('mode="nearest"', ("scales", (1, 1, 2)), (2, 2, 5), 21),
    "box": ('mode="linear"', ("scales", (1, 1, 2, 1.5, 0.5)), (1, 2, 3, 4, 4), 21),
    "box, nearest, blocks": ('mode="nearest"', ("scales", (1, 1, 2, 2, 3)), (1, 2, 3, 2, 2), 21),
    "box, nearest": ('mode="nearest"', ("scales", (1, 1, 2, 1.5, 0.5)), (1, 2, 3, 4, 4), 21),
    "antialias": ('mode="linear", axes=[3,2], antialias=1', ("scales", (0.5, 0.7)), (2, 2, 5, 4), 21),
    "antialias, cubic": ('mode="cubic", axes=[3,2], antialias=1', ("scales", (0.5, 0.7)), (2, 2, 5, 4), 21),
    "one ratio": (
        *('mode="nearest", axes=[2,3], keep_aspect_ratio_policy="not_larger"', ("sizes", (7, 9))),
        *((2, 2, 5, 4), 21),
    ),
    "upsampling of opset 13": (
        *('mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric"', WHOLE),
        *((2, 2, 5, 4), 13),
    ),
}
FLOOR = 'mode="nearest", nearest_mode="floor", by scales (1, 1, 0.6, 1.3)'
# Output position 1 of scale 0.6 is at a jump of `floor`, where the runtimes round differently
JUMPS = {f"{mode}, {FLOOR}" for mode in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")}


def case(attributes, how, shape, opset, free="N"):
    kind, values = how
    constant = f"{'float' if kind == 'scales' else 'int64'}[{len(values)}] v = {{{','.join(map(str, values))}}}"
    dims = [free if kind == "scales" or "axes" in attributes else shape[0], *shape[1:]]
    arguments = "x, , v" if kind == "scales" else "x, , , v"
    text = f"""g (float[{",".join(map(str, dims))}] x) => (float[{",".join("abcde"[: len(shape)])}] y) <{constant}>
               {{ y = Resize<{attributes}>({arguments}) }}"""
    return model_of(text, opset), {"x": np.random.default_rng(4).standard_normal(shape).astype(np.float32)}


SAMPLE = [f"{t}, {m}, by {how[0]} {how[1]}" for t, (m, how) in pairs(TRANSFORMATIONS, FORMS, 4)]
SAMPLE += [name for name in VARIANTS if not name.startswith(TRANSFORMATIONS)]


@pytest.mark.parametrize("name", [name for name in SAMPLE if name in VARIANTS])
def test_a_variant_agrees_with_differences_in_both_runtimes(name):
    model, feeds = case(*VARIANTS[name])
    assert worst_error(model, feeds) < TOLERANCE
    assert worst_error_in_runtime(model, feeds, step=1) < SINGLE  # linear in x: a step of 1 only has rounding errors
    if name not in JUMPS:
        assert disagreement(model, feeds) < SINGLE


def test_a_crop_sends_nothing_back_from_what_it_extrapolates():
    model = model_of(
        """g (float[N,1,4,4] x) => (float[a,b,c,d] y) <float[4] roi = {0.2,0.3,0.7,1.4}, int64[2] size = {3,3}>
        { y = Resize<mode="linear", axes=[2,3], coordinate_transformation_mode="tf_crop_and_resize",
                     extrapolation_value=9.0>(x, roi, , size) }"""
    )
    feeds = {"x": np.random.default_rng(5).standard_normal((2, 1, 4, 4)).astype(np.float32)}
    assert worst_error(model, feeds, only=("x",)) < TOLERANCE
    assert worst_error_in_runtime(model, feeds, step=1) < SINGLE


def test_sizes_may_be_computed_as_long_as_only_the_batch_is_free():
    model = model_of(
        """g (float[N,2,5,4] x) => (float[e,f,h,w] y) <int64[2] size = {7,9}, int64[1] zero = {0}, int64[1] two = {2}>
        { s = Shape(x) head = Slice(s, zero, two) all = Concat<axis=0>(head, size)
          z = Resize<mode="linear">(x, , , all) y = Identity(z) }"""
    )
    feeds = {"x": np.random.default_rng(6).standard_normal((2, 2, 5, 4)).astype(np.float32)}
    assert worst_error(model, feeds) < TOLERANCE
    assert disagreement(model, feeds) < SINGLE


def test_an_axis_that_stays_as_it_is_has_no_matrix():
    """One of the rows would have as many numbers as the square of the batch."""
    model, _ = case('mode="linear"', ("scales", (1, 1, 2)), (2, 2, 5), 21)
    model.graph.node.append(model_of("g (float[N] y) => (float l) { l = ReduceSum<keepdims=0>(y) }").graph.node[0])
    kinds = [node.op_type for node in native(model, "l", [], ["x"])[0].graph.node]
    assert kinds.count("Resize") == 2  # of x, and of the unit matrix of its last axis


def free(attributes, how, shape, opset):
    """Return the same with every size free, and its scales or sizes an input."""
    model, feeds = case(attributes, how, shape, opset)
    for i, dim in enumerate(model.graph.input[0].type.tensor_type.shape.dim):
        dim.dim_param = "NCDHW"[i]
    [given] = model.graph.initializer
    model.graph.input.add().CopyFrom(onnx.helper.make_tensor_value_info("v", given.data_type, given.dims))
    del model.graph.initializer[:]
    return model, {**feeds, "v": onnx.numpy_helper.to_array(given)}


FREE = (
    *(f"half_pixel, {mode}, by {BROKEN[0]} {BROKEN[1]}" for mode in MODES[1:5:3]),
    *(f"{transformation}, {MODES[0]}, by {SIZES[0]} {SIZES[1]}" for transformation in TRANSFORMATIONS[2:]),
    *("line", "box", "antialias", "antialias, cubic", "upsampling of opset 13", "one ratio"),
)


@pytest.mark.parametrize("name", FREE)
def test_free_sizes_have_the_gradient_of_known_ones(name):
    (model, feeds), (other, fed) = case(*VARIANTS[name]), free(*VARIANTS[name])
    np.testing.assert_allclose(gradients(other, fed)["x"], gradients(model, feeds)["x"], rtol=1e-4, atol=1e-5)


def test_a_crop_may_be_read_from_an_input():
    text = """(float[N,C,H,W] x ROI) => (float[a,b,c,d] y) <CONSTANT int64[2] s = {3,3}>
        { y = Resize<mode="linear", axes=[2,3], coordinate_transformation_mode="tf_crop_and_resize">(x, roi, , s) }"""
    crop, x = {"roi": np.array([0.2, 0.3, 0.7, 1.4], np.float32)}, np.ones((2, 1, 4, 4), np.float32)
    known = model_of("g " + text.replace(" ROI", "").replace("CONSTANT", "float[4] roi = {0.2,0.3,0.7,1.4},"))
    given = model_of("g " + text.replace(" ROI", ", float[4] roi").replace("CONSTANT", ""))
    expected = gradients(known, {"x": x})["x"]
    np.testing.assert_allclose(gradients(given, {"x": x, **crop}, "x")["x"], expected, rtol=1e-5)


def test_one_ratio_is_refused_by_name_where_it_resizes_the_batch():
    model, _ = case('mode="nearest", keep_aspect_ratio_policy="not_larger"', ("sizes", (2, 2, 7, 9)), (2, 2, 5, 4), 21)
    model.graph.node.append(model_of("g (float[N] y) => (float l) { l = ReduceSum<keepdims=0>(y) }").graph.node[0])
    with pytest.raises(DeriveError, match=r"(?s)if the batch is not resized.*axes \[0, 1, 2, 3\]"):
        native(model, "l", [], ["x"])


def test_corners_of_a_size_that_is_rounded_have_the_slope_of_what_runs():
    model, feeds = case(
        'mode="linear", coordinate_transformation_mode="align_corners"', BROKEN, (1, 1, 5, 4), 21, free=1
    )
    dy = np.random.default_rng(5).standard_normal((1, 1, 3, 5)).astype(np.float32)
    [found] = PlainSession(ortpipe.gradient(model, ["y"], ["x"])).run({**feeds, "y_grad": dy}, ["x_grad"])
    session, units = PlainSession(model), np.eye(20, dtype=np.float32).reshape(20, 1, 1, 5, 4)
    slopes = [(session.run({"x": unit}, ["y"])[0] * dy).sum() for unit in units]
    assert np.abs(found.ravel() - slopes).max() < SINGLE
