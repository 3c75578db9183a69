from __future__ import annotations

import numpy as np
import pytest
from autodiff.numeric import worst_error
from autodiff.rules.onnx_cases import disagreement, model_of
from engines import native
from onnx.reference import ReferenceEvaluator
from plain_session import PlainSession

from ortpipe.autodiff import gradient
from ortpipe.errors import DeriveError

TOLERANCE, SINGLE = 1e-6, 1e-5
# (what stands in front of x's last axis, its parts, the call, opset)
TRANSFORMS = {
    "real, opset 17": ("N,6,3", 1, "DFT(x)", 17),
    "complex, last but one": ("N,6,3", 2, "DFT(x)", 20),
    "half": ("N,6", 1, "DFT<onesided=1>(x)", 20),
    "half of a length only known at run time": ("N,T", 1, "DFT<onesided=1>(x)", 20),
    "half of an odd length": ("N,T", 1, "DFT<onesided=1>(x, short)", 20),
    "cut": ("N,6,2", 2, "DFT(x, short, one)", 20),
    "filled up": ("N,T", 1, "DFT(x, long)", 20),
    "inverse": ("N,6", 2, "DFT<inverse=1>(x)", 20),
    "inverse, cut": ("N,6", 2, "DFT<inverse=1>(x, short)", 20),
    "inverse of real numbers": ("N,T", 1, "DFT<inverse=1, axis=1>(x, long)", 17),
    "frames": ("N,14", 1, "STFT<onesided=1>(x, step, w)", 17),
    "frames of a length only known at run time": ("N,T", 1, "STFT<onesided=1>(x, step, w)", 17),
    "frames of both halves and parts": ("N,T", 2, "STFT<onesided=0>(x, step, w)", 17),
    "frames without a window": ("N,14", 1, "STFT<onesided=1>(x, step, , short)", 17),
}
CONSTANTS = "<int64 short = {5}, int64 long = {8}, int64 one = {1}, int64 step = {3}>"


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_agrees_with_central_differences_and_onnxruntime_with_the_reference(name):
    front, parts, call, opset = TRANSFORMS[name]
    rank = front.count(",") + 2 + call.startswith("STFT")
    window = ", float[5] w" if ", w" in call else ""
    model = model_of(
        f"""g (float[{front},{parts}] x{window}) => (float[{",".join("abcde"[:rank])}] y) {CONSTANTS}
        {{ y = {call} }}""",
        opset,
    )
    rng, sizes = np.random.default_rng(0), {"N": 2, "T": 14 if "STFT" in call else 6}
    feeds = {"x": rng.standard_normal([*(sizes.get(d) or int(d) for d in front.split(",")), parts]).astype(np.float32)}
    feeds |= {"w": rng.standard_normal(5).astype(np.float32)} if window else {}
    assert worst_error(model, feeds) < TOLERANCE
    # what is linear is its own derivative; two rules in a row give it
    tangents = gradient(model, "y", "x", kind="jvp")
    [y] = ReferenceEvaluator(model).run(None, feeds)
    moved = ReferenceEvaluator(tangents).run(None, {**feeds, "x_tangent": feeds["x"]})
    np.testing.assert_allclose(moved[0], y, atol=1e-4)
    if (parts, call[0]) != (2, "S"):  # onnxruntime 1.19.2 reads beyond the frames of complex numbers
        assert disagreement(model, feeds) < SINGLE


def test_a_matrix_without_an_inverse_has_a_determinant_s_gradient():
    model = model_of("g (float[N,2,3,3] x) => (float[a,b] y) { y = Det(x) }")
    x = np.random.default_rng(0).standard_normal((2, 2, 3, 3)).astype(np.float32)
    x[0, 1, 2] = x[0, 1, 0] * 2
    assert worst_error(model, {"x": x}) < TOLERANCE
    assert disagreement(model, {"x": x}) < SINGLE


def test_frames_of_a_signal_of_unknown_length_are_read_inside_a_loop():
    model = model_of("""g (float[1,T,1] x, float[4] w, float[3] h) => (float[3] y) {
        step = Constant<value_int=2>() n = Constant<value_int=2>() yes = Constant<value_int=1>() go = Cast<to=9>(yes)
        f = STFT<onesided=0>(x, step, w)
        y = Loop(n, go, h) <body = inner (int64 i, bool c, float[3] a) => (bool d, float[3] b) {
            d = Identity(c) m = ReduceMean<keepdims=0>(f) s = Add(a, m) b = Tanh(s) }> }""")
    tangents = gradient(model, "y", "x", kind="jvp")
    rng = np.random.default_rng(0)
    feeds = {"x": (1, 9, 1), "w": (4,), "h": (3,), "x_tangent": (1, 9, 1)}
    feeds = {name: rng.uniform(0.5, 1, shape).astype(np.float32) for name, shape in feeds.items()}
    moved = PlainSession(tangents).run({i.name: feeds[i.name] for i in tangents.graph.input})[0]
    evaluator, way = ReferenceEvaluator(model), feeds.pop("x_tangent") * np.float32(1e-2)
    up, down = (evaluator.run(None, {**feeds, "x": feeds["x"] + sign * way})[0] for sign in (1, -1))
    np.testing.assert_allclose(moved, (up - down) / 2e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("call", "said"),
    [("DFT<inverse=1, onesided=1>(x)", "with onesided"), ("MaxUnpool<kernel_shape=[1]>(x, i, s)", "output_shape")],
)
def test_what_has_no_rule_of_an_operator_is_said(call, said):
    model = model_of(
        f"g (float[2,4,2] x, int64[2,4,2] i, int64[3] s) => (float l) {{ y = {call} l = ReduceSum<keepdims=0>(y) }}"
    )
    with pytest.raises(DeriveError, match=said):
        native(model, "l", [], ["x"])


@pytest.mark.parametrize("call", ["DFT<onesided=1>(x)", "STFT<onesided=1>(x, step, w)"])
def test_one_half_of_a_free_length_has_a_gradient_that_runs_behind_another_operator(call):
    rank = "a,b,2" if call[0] == "D" else "a,b,c,2"
    constants = "<int64 step = {3}, float[5] w = {1, 2, 3, 2, 1}>"
    model = model_of(f"g (float[N,T,1] x) => (float[{rank}] y) {constants} {{ h = {call} y = Mul(h, h) }}", 20)
    feeds = {"x": np.random.default_rng(0).standard_normal([2, 14, 1]).astype(np.float32)}
    assert worst_error(model, feeds) < TOLERANCE
    assert disagreement(model, feeds) < SINGLE  # onnxruntime took the gradient's length for that of the half
