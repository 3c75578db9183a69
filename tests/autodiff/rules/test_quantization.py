"""Gradients of rounding: central differences of the function whose rounding error is held, and LSQ's own formula."""

import numpy as np
import onnx
import onnx.parser
import pytest
from plain_session import PlainSession

from ortpipe.autodiff import gradient
from ortpipe.errors import DeriveError

INT8, UINT8 = (-128, 127), (0, 255)
PAIR = "q = QuantizeLinear{to}(x, s, z) y = DequantizeLinear{back}(q, s, z)"
MOVED = "q = QuantizeLinear{to}(x, s, z) r = Reshape(q, k) t = Reshape(r, l) y = DequantizeLinear{back}(t, s, z)"
FORMS = {  # what → (scale, zero points, bounds, attributes, nodes)
    "per tensor": (np.array(0.01), np.array(130), UINT8, ("", ""), PAIR),
    "of one": (np.array([0.01]), np.array([-4]), INT8, ("", ""), PAIR),
    "per channel": (np.array([0.01, 0.02, 0.05]), np.array([0, 3, -5]), INT8, ("<axis=1>", "<axis=-1>"), PAIR),
    "moved": (np.array([0.01, 0.02, 0.05]), np.array([0, 0, 0]), INT8, ("<axis=1>", "<axis=1>"), MOVED),
    "per block": (
        np.array([[0.01, 0.02, 0.05], [0.1, 0.02, 0.01]]),
        np.zeros((2, 3), int),
        INT8,
        ("<axis=0, block_size=3>", "<axis=0, block_size=3>"),
        PAIR,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_x_and_scales_get_the_slope_of_what_holds_its_rounding_error(form: str) -> None:
    rng = np.random.default_rng(0)
    scale, zero, bounds, (to, back), nodes = FORMS[form]
    x, dy = rng.normal(0, 2, (4, 3)), rng.normal(size=(4, 3))
    wide, low, high = (np.repeat(a, 3, 0)[:4] if a.ndim > 1 else a for a in (scale, bounds[0] - zero, bounds[1] - zero))
    error = np.round(x / wide) - x / wide

    def f(x: np.ndarray, scale: np.ndarray) -> float:
        wide = np.repeat(scale, 3, 0)[:4] if scale.ndim > 1 else scale
        return float(np.sum(dy * wide * np.clip(x / wide + error, low, high)))

    kind = "uint8" if bounds == UINT8 else "int8"
    sizes = ",".join(map(str, scale.shape))
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[4,3] x, float[{sizes}] s) => (float[4,3] y)
      <{kind}[{sizes}] z = {{{",".join(map(str, zero.ravel()))}}}, int64[1] k = {{-1}}, int64[2] l = {{4,3}}>
      {{ {nodes.format(to=to, back=back)} }}""".replace("[]", "")
    model = gradient(onnx.parser.parse_model(text), "y", ["x", "s"])
    feeds = {name: a.astype(np.float32) for name, a in (("x", x), ("s", scale), ("y_grad", dy))}
    found = PlainSession(model).run(feeds)
    for got, name in zip(found, ("x", "s"), strict=True):
        array = {"x": x, "s": scale}[name]
        for place in np.ndindex(array.shape):
            h = np.zeros_like(array)
            h[place] = 1e-7
            moved = [
                f(**{"x": x, "scale": scale, {"x": "x", "s": "scale"}[name]: array + sign * h}) for sign in (1, -1)
            ]
            assert got[place] == pytest.approx((moved[0] - moved[1]) / 2e-7, rel=1e-3, abs=1e-3)


def test_a_dynamic_scale_lets_gradients_pass_too() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[4] x) => (float[4] y)
      { q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }"""
    x, dy = np.array([0.3, -1.0, 2.0, 0.7], np.float32), np.ones(4, np.float32)
    [dx] = PlainSession(gradient(onnx.parser.parse_model(text), "y", "x")).run({"x": x, "y_grad": dy})
    np.testing.assert_allclose(dx[[0, 3]], 1, atol=1e-6)  # the ends of the range also set it


def test_what_computes_with_integers_between_the_two_is_refused_by_name() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[1,1,4,4] x, float s) => (float[1,1,3,3] y)
      { q = QuantizeLinear(x, s) p = MaxPool<kernel_shape=[2,2]>(q) y = DequantizeLinear(p, s) }"""
    with pytest.raises(DeriveError, match="MaxPool at node 'p', which reads the integers of 'q'"):
        gradient(onnx.parser.parse_model(text), "y", "x")
