"""Forms of operators that ONNX's node tests don't show: older opsets, sizes known only by name, pads that cut."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from autodiff.numeric import runtime_error, worst_error
from engines import native
from plain_session import PlainSession

from ortpipe.autodiff.table import RULES

TOLERANCE = 1e-6  # central differences of step 1e-6 in float64


def error(text, feeds, opset=21, **options):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    return worst_error(model, feeds, **options)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [None, [1], [-1, 0], [0, 1, 2]])
@pytest.mark.parametrize("op", [op for op in RULES if op.startswith("Reduce")])
def test_reductions_of_opset_13_say_their_axes_by_an_attribute(op, axes, keepdims):
    given = f", axes={axes}" if axes and op != "ReduceSum" else ""
    also, name = (
        (f"<int64[{len(axes)}] axes = {{{','.join(map(str, axes))}}}>", ", axes") if axes and not given else ("", "")
    )
    rank = 3 if keepdims else 3 - len(axes or [0, 1, 2])
    shape = f"float[{','.join(f'd{i}' for i in range(rank))}] y" if rank else "float y"
    text = f"g (float[N,M,4] x) => ({shape}) {also} {{ y = {op}<keepdims={keepdims}{given}>(x{name}) }}"
    assert error(text, {"x": 0.5 + np.abs(normal(2, 3, 4))}, 13) < TOLERANCE


@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_a_product_with_zeros_is_moved_by_a_single_one(zeros, opset):
    x = normal(2, 3)
    x[0, :zeros] = 0
    call = "ReduceProd<axes=[1], keepdims=0>(x)" if opset < 18 else "ReduceProd<keepdims=0>(x, a)"
    text = f"g (float[2,3] x) => (float[2] y) <int64[1] a = {{1}}> {{ y = {call} }}"
    assert error(text, {"x": x}, opset) < TOLERANCE


@pytest.mark.parametrize("dims", ["4,5", "N,M"])
@pytest.mark.parametrize("pads", [[0, -1, 0, -1], [-1, 2, 1, -2], [1, 0, -1, -3], [-2, 0, 1, 1]])
def test_a_negative_pad_cuts_and_its_gradient_is_zero_there(pads, dims):
    """By onnxruntime, as onnx.reference cannot cut; the loss is linear, so that a difference of step 1 is exact."""
    text = f"""g (double[{dims}] x, double v, double[A,B] c) => (double loss)
     <int64[4] pads = {{{",".join(map(str, pads))}}}>
     {{ y = Pad(x, pads, v) z = Mul(y, c) loss = ReduceSum<keepdims=0>(z) }}"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 21]> {text}')
    derived, names = native(model, "loss", [], ["x", "v"])
    shape = (4 + pads[0] + pads[2], 5 + pads[1] + pads[3])
    feeds = {"x": normal(4, 5), "v": np.array(0.3), "c": normal(*shape, seed=1)}
    loss, dx, dv = PlainSession(derived).run(feeds, ["loss", names["x"], names["v"]])
    for place in np.ndindex(4, 5):
        moved = feeds["x"].copy()
        moved[place] += 1
        assert PlainSession(model).run({**feeds, "x": moved})[0] - loss == pytest.approx(dx[place], abs=1e-12)
    assert PlainSession(model).run({**feeds, "v": np.array(1.3)})[0] - loss == pytest.approx(float(dv), abs=1e-12)


@pytest.mark.parametrize("mode", ["edge", "reflect"])
@pytest.mark.parametrize("opset", [13, 21])
def test_a_pad_that_reads_sends_back_to_where_it_read(mode, opset):
    text = f'g (float[N,4] x) => (float[A,B] y) <int64[4] p = {{1,2,2,1}}> {{ y = Pad<mode="{mode}">(x, p) }}'
    assert error(text, {"x": normal(3, 4)}, opset) < TOLERANCE


@pytest.mark.parametrize("dims", ["6,5", "N,5", "N,M"])
@pytest.mark.parametrize(
    "span", [(0, 4, 0, 1), (1, -1, 1, 1), (5, 0, 0, -2), (-3, 9223372036854775807, 1, 1), (0, 5, 1, 2)]
)
def test_a_slice_sends_back_to_the_places_it_read(span, dims):
    names = zip(("s", "e", "a", "t"), span, strict=True)
    constants = ", ".join(f"int64[1] {name} = {{{value}}}" for name, value in names)
    text = f"g (float[{dims}] x) => (float[A,B] y) <{constants}> {{ y = Slice(x, s, e, a, t) }}"
    assert error(text, {"x": normal(6, 5)}) < TOLERANCE


def test_a_slice_between_two_transposes_has_a_gradient_that_onnxruntime_runs():
    text = """g (float[N,H,4] x) => (float[N,K,4] y) <int64[1] s = {0}, int64[1] e = {2}, int64[1] a = {2}>
     { t = Transpose<perm=[0,2,1]>(x) h = Tanh(t) c = Slice(h, s, e, a) d = Transpose<perm=[0,2,1]>(c) y = Tanh(d) }"""
    assert error(text, {"x": normal(2, 3, 4)}) < TOLERANCE
    feeds = {"x": normal(2, 3, 4).astype(np.float32)}
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 21]> {text}')
    assert runtime_error(model, feeds) < 1e-5


def test_shape_operators_work_on_sizes_known_only_by_name():
    text = """g (float[N,M,4] x, float[K,M,4] z) => (float[A,B] y)
     <int64[3] turned = {0,-1,2}, int64[1] front = {0}, int64[2] flat = {-1,4}, int64[4] often = {1,2,1,3}>
     { c = Concat<axis=0>(x, z) r = Reshape(c, turned) u = Unsqueeze(r, front) t = Tile(u, often)
       q = Squeeze(t, front) p = Transpose<perm=[2, 0, 1]>(q) y = Flatten<axis=1>(p) }"""
    assert error(text, {"x": normal(2, 3, 4), "z": normal(1, 3, 4, seed=1)}) < TOLERANCE


def test_an_empty_tensor_has_an_empty_gradient():
    text = "g (float[0,3,4] x) => (float[3,4,0] y) <int64[3] to = {3,4,0}> { y = Reshape<allowzero=1>(x, to) }"
    assert error(text, {"x": np.zeros((0, 3, 4))}) == 0


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("extra", [(), (2,), (2, 3)])
def test_softmax_cross_entropy_of_a_named_batch(reduction, weighted, extra):
    rng = np.random.default_rng(0)
    more = "".join(f",{d}" for d in extra)
    out = f"float[N{more}] y" if reduction == "none" else "float y"
    text = f"""g (float[N,3{more}] x, int64[N{more}] i, float[3] w) => ({out}, float[N,3{more}] p)
     {{ y, p = SoftmaxCrossEntropyLoss<reduction="{reduction}", ignore_index=1>(x, i{", w" if weighted else ""}) }}"""
    feeds = {"x": rng.normal(size=(4, 3, *extra)), "i": rng.integers(0, 3, (4, *extra)), "w": np.array([0.5, 1, 2])}
    assert error(text, feeds, only=("x",)) < TOLERANCE


def test_a_gradient_that_is_the_same_for_every_target_reaches_a_loss_without_reduction():
    loss = 'l = NegativeLogLikelihoodLoss<reduction="none">(x, t) y = ReduceMean<keepdims=0>(l)'
    text = f"g (float[2,3,2] x) => (float y) <int64[2,2] t = {{0,2,1,1}}> {{ {loss} }}"
    assert error(text, {"x": normal(2, 3, 2)}) < TOLERANCE


def test_depth_to_space_spreads_channels_whose_number_is_free():
    text = 'g (float[N,C,H,W] x) => (float[N,D,A,B] y) { y = DepthToSpace<blocksize=2, mode="CRD">(x) }'
    assert error(text, {"x": normal(1, 8, 2, 3)}) < TOLERANCE
