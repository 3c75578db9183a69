"""Deriving twice: the engine's own output is a graph that it can differentiate."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from autodiff.numeric import worst_error
from engines import native
from onnx.reference import ReferenceEvaluator
from plain_session import PlainSession

from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.check import checked, finish

N, K = 7, 3
LINEAR = """g (double[N,3] X, double[N,1] t, double[3,1] w) => (double loss)
 { p = MatMul(X, w) d = Sub(p, t) s = Mul(d, d) loss = ReduceMean<keepdims = 0>(s) }"""
LOGISTIC = """g (double[N,3] X, double[N,1] t, double[3,1] w) => (double loss)
 { z = MatMul(X, w) s = Softplus(z) m = Mul(t, z) d = Sub(s, m) loss = ReduceMean<keepdims = 0>(d) }"""
NETWORK = """g (double[N,3] X, double[N,1] t, double[3,4] w, double[4] b, double[4,1] u) => (double loss)
 { a = Gemm(X, w, b) h = Tanh(a) p = MatMul(h, u) d = Sub(p, t) s = Mul(d, d) loss = ReduceMean<keepdims = 0>(s) }"""
SCAN = """g (double[3] h0, double[4,3] x, double[3] w) => (double loss)
 { h, ys = Scan<num_scan_inputs = 1, body = step (double[3] was, double[3] now) => (double[3] is, double[3] y)
   { p = Mul(was, w) q = Add(p, now) is = Tanh(q) y = Mul(is, w) }>(h0, x)
   a = Mul(ys, ys) s = ReduceSum<keepdims = 0>(a) m = ReduceSum<keepdims = 0>(h) loss = Add(s, m) }"""
BRANCH = """g (bool c, double[3] x, double[3] w) => (double loss)
 { y = If(c) <then_branch = t () => (double[3] ty) { p = Mul(x, w) ty = Exp(p) },
              else_branch = e () => (double[3] ey) { q = Mul(w, w) ey = Mul(q, w) }>
   loss = ReduceSum<keepdims = 0>(y) }"""


def parsed(text):
    return checked(onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 21]>\n' + text))


def along(model, gradients):
    """Return the model whose output is Σ gradient · direction, and the name of each direction's input."""
    own = ir.from_proto(model)
    graph, total = own.graph, None
    op = Builder(graph, "second")
    directions = {}
    for name, gradient in gradients.items():
        value = query.value(graph, gradient)
        direction = op.input(f"along/{name}", value.dtype, list(value.shape))
        directions[name] = direction.name
        term = op.ReduceSum(op.Mul(value, direction), keepdims=0)
        total = term if total is None else op.Add(total, term)
    total.type, total.shape = value.type, ir.Shape([])
    graph.outputs[:] = [op.rename(total, "product")]
    return finish(own), directions


def second(text, parameters):
    """Return the model of Hessian · v, the names of its products and of its directions."""
    first, gradients = native(parsed(text), "loss", [], parameters)
    product, directions = along(first, gradients)
    derived, products = native(product, "product", [], parameters)
    return derived, products, directions


def hessian_products(text, parameters, feeds, vectors):
    derived, products, directions = second(text, parameters)
    names = [o.name for o in derived.graph.output]
    results = ReferenceEvaluator(derived).run(None, {**feeds, **{directions[p]: v for p, v in vectors.items()}})
    found = dict(zip(names, results, strict=True))
    return {p: found[products[p]] for p in parameters}


def rows(seed=2):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N, K)), rng


def test_linear_regression_has_the_hessian_two_xtx_over_n():
    x, rng = rows()
    feeds = {"X": x, "t": rng.normal(size=(N, 1)), "w": rng.normal(size=(K, 1))}
    columns = [hessian_products(LINEAR, ["w"], feeds, {"w": e.reshape(K, 1)})["w"][:, 0] for e in np.eye(K)]
    np.testing.assert_allclose(np.stack(columns, 1), 2 * x.T @ x / N, rtol=1e-12)


def test_logistic_regression_has_the_hessian_xt_diag_p_1_minus_p_x_over_n():
    x, rng = rows()
    feeds = {"X": x, "t": rng.integers(0, 2, (N, 1)).astype(float), "w": rng.normal(size=(K, 1))}
    p = 1 / (1 + np.exp(-x @ feeds["w"]))
    columns = [hessian_products(LOGISTIC, ["w"], feeds, {"w": e.reshape(K, 1)})["w"][:, 0] for e in np.eye(K)]
    np.testing.assert_allclose(np.stack(columns, 1), x.T @ (p * (1 - p) * x) / N, rtol=1e-12)


CASES = {
    "a tanh network": (NETWORK, ["w", "b", "u"], {"X": (5, 3), "t": (5, 1), "w": (3, 4), "b": (4,), "u": (4, 1)}),
    "a Scan": (SCAN, ["h0", "x", "w"], {"h0": (3,), "x": (4, 3), "w": (3,)}),
    "an If, then": (BRANCH, ["w"], {"c": True, "x": (3,), "w": (3,)}),
    "an If, else": (BRANCH, ["w"], {"c": False, "x": (3,), "w": (3,)}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_second_derivative_is_the_central_difference_of_the_first(name):
    text, parameters, shapes = CASES[name]
    rng = np.random.default_rng(4)
    feeds = {k: 0.7 * rng.normal(size=s) if isinstance(s, tuple) else np.array(s) for k, s in shapes.items()}
    first, gradients = native(parsed(text), "loss", [], parameters)
    product, directions = along(first, gradients)
    vectors = {directions[p]: rng.normal(size=shapes[p]) for p in parameters}
    assert worst_error(product, {**feeds, **vectors}, tuple(parameters)) < 1e-7


def test_the_third_derivative_of_a_cube_is_six():
    model = parsed("g (double[3] x) => (double loss) { s = Mul(x, x) c = Mul(s, x) loss = ReduceSum<keepdims = 0>(c) }")
    feeds = {"x": np.array([0.5, -1.0, 2.0])}
    for _ in range(2):
        model, gradients = native(model, model.graph.output[0].name, [], ["x"])
        model, directions = along(model, gradients)
        feeds[directions["x"]] = np.ones(3)
    model, gradients = native(model, model.graph.output[0].name, [], ["x"])
    values = dict(zip([o.name for o in model.graph.output], ReferenceEvaluator(model).run(None, feeds), strict=True))
    np.testing.assert_allclose(values[gradients["x"]], [6, 6, 6], rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_and_the_reference_agree_on_second_derivatives(name):
    text, parameters, shapes = CASES[name]
    rng = np.random.default_rng(4)
    derived, _, directions = second(text.replace("double", "float"), parameters)
    shapes = {**shapes, **{directions[p]: shapes[p] for p in parameters}}
    feeds = {
        k: rng.normal(size=s).astype(np.float32) if isinstance(s, tuple) else np.array(s) for k, s in shapes.items()
    }
    read = {k: v for k, v in feeds.items() if k in {i.name for i in derived.graph.input}}
    for got, expected in zip(PlainSession(derived).run(read), ReferenceEvaluator(derived).run(None, read), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
