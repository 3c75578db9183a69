"""What a gradient is on a corner, as PyTorch documents it, and that no gradient overflows on large logits."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from engines import native
from plain_session import PlainSession


def gradients_of(text, feeds, by):
    """Return loss and gradients in float32 by onnxruntime; the text ends in `loss`."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    derived, names = native(model, "loss", [], list(by))
    loss, *found = PlainSession(derived).run(feeds, ["loss", *(names[n] for n in by)])
    return loss, found


def at(nodes, *points):
    """Return d Σ y / dx at these points."""
    x = np.array(points, np.float32)
    text = f"g (float[N] x) => (float loss) {{ {nodes} loss = ReduceSum<keepdims=0>(y) }}"
    return gradients_of(text, {"x": x}, ["x"])[1][0].tolist()


BOUNDS = "low = Constant<value_float=-1.0>() high = Constant<value_float=2.0>()"
# operator: points, and PyTorch's gradient there (2.7 documentation and derivatives.yaml)
CORNERS = {
    "relu is flat at 0": ("y = Relu(x)", {0: 0, -1: 0, 1: 1}),
    "leaky_relu at 0 has the negative slope": ("y = LeakyRelu<alpha=0.1>(x)", {0: 0.1, 1: 1, -1: 0.1}),
    "elu at 0 has slope alpha": ("y = Elu<alpha=0.5>(x)", {0: 0.5, 1: 1}),
    "celu at 0 has slope 1": ("y = Celu<alpha=0.5>(x)", {0: 1, 1: 1}),
    "abs is flat at 0": ("y = Abs(x)", {0: 0, 2: 1, -2: -1}),
    "clamp passes at both bounds": (f"{BOUNDS} y = Clip(x, low, high)", {-1: 1, 2: 1, -1.5: 0, 2.5: 0, 0: 1}),
    "hardsigmoid is flat at its corners": ("y = HardSigmoid<alpha=0.25>(x)", {-2: 0, 2: 0, 0: 0.25, 3: 0}),
    "hardswish is flat at -3 and steep at 3": ("y = HardSwish(x)", {-3: 0, 3: 1, 0: 0.5, 4: 1, -4: 0}),
    "threshold is flat at its threshold": ("y = ThresholdedRelu<alpha=1.0>(x)", {1: 0, 1.5: 1, 0: 0}),
    "sqrt is infinitely steep at 0": ("y = Sqrt(x)", {0: np.inf, 4: 0.25}),
    "a power of a negative number has no slope": ("b = Constant<value_float=-0.5>() y = Pow(b, x)", {2: np.nan}),
    "steps are flat": ("a = Floor(x) b = Sign(x) c = Add(a, b) d = Round(c) e = Mul(d, x) y = Sub(e, x)", {0: -1}),
}


@pytest.mark.parametrize("name", CORNERS)
def test_on_a_corner_it_is_what_pytorch_says(name):
    nodes, expected = CORNERS[name]
    np.testing.assert_allclose(at(nodes, *expected), list(expected.values()), rtol=1e-6)


def test_softmax_is_flat_where_infinity_replaces_it():
    text = """g (float[2] x) => (float loss) { c = Constant<value = bool[1] {1}>() i = Constant<value = float {inf}>()
              s = Softmax(x) y = Where(c, i, s) loss = ReduceSum<keepdims=0>(y) }"""
    _, [dx] = gradients_of(text, {"x": np.array([0, 1], np.float32)}, "x")
    assert dx.tolist() == [0, 0]


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_two_equal_inputs_of_a_maximum_share_evenly(op):
    text = f"g (float[2] a, float[2] b) => (float loss) {{ y = {op}(a, b) loss = ReduceSum<keepdims=0>(y) }}"
    feeds = {"a": np.array([1, 2], np.float32), "b": np.array([1, 1], np.float32)}
    _, [da, db] = gradients_of(text, feeds, "ab")
    assert da[0] == db[0] == 0.5
    assert da[1] + db[1] == 1


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_equal_values_of_a_reduced_maximum_share_evenly(op):
    assert at(f"y = {op}<keepdims=0>(x)", 3, 3, 3, 3) == [0.25] * 4


def test_a_parametric_slope_gets_nothing_from_0():
    text = "g (float[3] x, float[1] s) => (float loss) { y = PRelu(x, s) loss = ReduceSum<keepdims=0>(y) }"
    _, [dx, ds] = gradients_of(text, {"x": np.array([0, 1, -2], np.float32), "s": np.float32([0.25])}, "xs")
    assert dx.tolist() == [0.25, 1, 0.25]
    assert ds.tolist() == [-2]


def test_a_norm_is_flat_at_0():
    assert at("y = ReduceL2<keepdims=0>(x)", 0, 0) == [0, 0]
    assert at("y = ReduceL1<keepdims=0>(x)", 0, 0) == [0, 0]


def test_a_clip_whose_bounds_cross_sends_all_to_the_upper():
    text = """g (float[2] x, float low, float high) => (float loss)
     { y = Clip(x, low, high) loss = ReduceSum<keepdims=0>(y) }"""
    feeds = {"x": np.array([0, 5], np.float32), "low": np.float32(2), "high": np.float32(1)}
    _, [dx, low, high] = gradients_of(text, {k: np.asarray(v) for k, v in feeds.items()}, ["x", "low", "high"])
    assert (dx.tolist(), float(low), float(high)) == ([0, 0], 0, 2)


def test_powers_of_0_have_the_gradient_of_the_polynomial():
    for exponent, slope in ((0, 0), (1, 1), (2, 0), (3, 0)):
        assert at(f"e = Constant<value_float={exponent}.0>() y = Pow(x, e)", 0) == [slope]
    text = "g (float[3] a, float[3] b) => (float loss) { y = Pow(a, b) loss = ReduceSum<keepdims=0>(y) }"
    _, [da, db] = gradients_of(text, {"a": np.zeros(3, np.float32), "b": np.float32([0, 1, 2])}, "ab")
    assert (da.tolist(), db.tolist()) == ([0, 1, 0], [0, 0, 0])


LOGITS = np.array([[1e4, -1e4, 0], [-1e4, -1e4, -1e4], [1e4, 1e4, 1e4], [0, 1e4, -1e4]], np.float32)
SHARES = np.array([[1, 0, 0], [1 / 3] * 3, [1 / 3] * 3, [0, 1, 0]])
TRUTH = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]]
LOSSES = {
    "log-sum-exp": ("y = ReduceLogSumExp<keepdims=0>(x, last) loss = ReduceSum<keepdims=0>(y)", SHARES),
    "softmax": (
        "y = Softmax(x) p = Mul(y, t) loss = ReduceSum<keepdims=0>(p)",
        SHARES * (TRUTH - (SHARES * TRUTH).sum(1)[:, None]),
    ),
    "log-softmax": ("y = LogSoftmax(x) p = Mul(y, t) q = Neg(p) loss = ReduceSum<keepdims=0>(q)", SHARES - TRUTH),
    "softmax cross-entropy": ('loss = SoftmaxCrossEntropyLoss<reduction="sum">(x, i)', SHARES - TRUTH),
    "softmax cross-entropy with weights": (
        'loss = SoftmaxCrossEntropyLoss<reduction="sum", ignore_index=2>(x, i, w)',
        (SHARES - TRUTH) * np.array([[1], [2], [0], [1]]),
    ),
    "log loss of logits": (
        """size = Abs(x) both = Add(x, size) half = Constant<value_float=0.5>() positive = Mul(both, half)
        true = Mul(x, t) rest = Sub(positive, true) down = Neg(size) e = Exp(down) one = Constant<value_float=1.0>()
        sum = Add(e, one) log = Log(sum) l = Add(rest, log) loss = ReduceSum<keepdims=0>(l)""",
        np.where(LOGITS > 0, 1, np.where(LOGITS < 0, 0, 0.5)) - TRUTH,
    ),
    "softplus": ("y = Softplus(x) loss = ReduceSum<keepdims=0>(y)", 0.5 + 0.5 * np.sign(LOGITS)),
    "sigmoid": ("y = Sigmoid(x) loss = ReduceSum<keepdims=0>(y)", np.where(LOGITS == 0, 0.25, 0)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_logits_of_1e4_have_finite_values_and_the_right_gradients(name):
    nodes, expected = LOSSES[name]
    text = (
        f"g (float[N,3] x, float[N,3] t, int64[N] i, float[3] w) => (float loss) <int64[1] last = {{1}}> {{ {nodes} }}"
    )
    feeds = {"x": LOGITS, "t": TRUTH, "i": TRUTH.argmax(1), "w": np.float32([1, 2, 3])}
    loss, [dx] = gradients_of(text, feeds, ["x"])
    assert np.isfinite(loss)
    # log Σ exp is some 1e4 itself, and rounded to 1e-3 in float32
    np.testing.assert_allclose(dx, expected, atol=5e-4 if name == "log-sum-exp" else 1e-6)
