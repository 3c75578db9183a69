"""Activations against closed forms of their slopes, where the node tests' tolerance would hide a mistake."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from engines import native
from plain_session import PlainSession
from scipy.special import erf

X = np.linspace(-4, 4, 161, dtype=np.float32)


def erf_slope(x: np.ndarray) -> np.ndarray:
    """Return Φ(x) + x · φ(x), the slope of GELU as Hendrycks and Gimpel (2016) define it."""
    return (1 + erf(x / math.sqrt(2))) / 2 + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def tanh_slope(x: np.ndarray) -> np.ndarray:
    """Return the central difference in float64 of the paper's approximation by tanh."""

    def gelu(x: np.ndarray) -> np.ndarray:
        return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    return (gelu(x + 1e-6) - gelu(x - 1e-6)) / 2e-6


@pytest.mark.parametrize(
    ("form", "slope"), [("none", erf_slope), pytest.param("tanh", tanh_slope, marks=pytest.mark.fast)]
)
def test_each_form_of_gelu_has_its_own_slope(form, slope):
    assert np.abs(erf_slope(X.astype(np.float64)) - tanh_slope(X.astype(np.float64))).max() > 1e-4
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]> g (float[N] x) => (float[N] y)
     {{ y = Gelu<approximate="{form}">(x) }}""")
    derived, names = native(model, "y", [], ["x"])
    seeds = {i.name: np.ones_like(X) for i in derived.graph.input if i.name != "x"}
    [got] = PlainSession(derived).run({"x": X, **seeds}, [names["x"]])
    np.testing.assert_allclose(got, slope(X.astype(np.float64)), atol=3e-6)


def test_softsign_has_a_slope_far_from_zero():
    x = np.array([-1e8, -1e4, 0, 1e4, 1e8], np.float32)
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]> g (float[N] x) => (float[N] y)
     { y = Softsign(x) }""")
    derived, names = native(model, "y", [], ["x"])
    seeds = {i.name: np.ones_like(x) for i in derived.graph.input if i.name != "x"}
    [got] = PlainSession(derived).run({"x": x, **seeds}, [names["x"]])
    np.testing.assert_allclose(got, (1 + np.abs(x.astype(np.float64))) ** -2, rtol=1e-6)
