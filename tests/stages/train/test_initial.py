from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortpipe.stages.train.random_weights import random_parameters

NETWORK = """g (float[N,40] X) => (float[N,1] y)
 <float[40,60] w = {ZEROS}, float[60] b = {BIAS}, float[1,60] row = {BIAS},
  float[60] scale = {BIAS}, float[60,1] u = {BIAS}>
 { h = Gemm(X, w, b) a = Tanh(h) r = Add(a, row) s = Mul(r, scale) y = MatMul(s, u) }"""
NETWORK = NETWORK.replace("{ZEROS}", "{" + ", ".join(["0.5"] * 2400) + "}").replace(
    "{BIAS}", "{" + ", ".join(["0.5"] * 60) + "}"
)


@pytest.fixture(params=["float32", "float64"])
def artifact(from_text, request):
    return from_text(NETWORK, dtype=request.param)


def drawn(artifact, parameters_of, seed=0):
    values = parameters_of(artifact.model)
    return random_parameters(ir.from_proto(artifact.model).graph, values, seed)


def test_shapes_and_dtypes_stay(artifact, parameters_of):
    old = parameters_of(artifact.model)
    for name, value in drawn(artifact, parameters_of).items():
        assert (value.shape, value.dtype) == (old[name].shape, old[name].dtype)


def test_matrices_are_glorot_uniform(artifact, parameters_of):
    w = drawn(artifact, parameters_of)["w"]
    bound = np.sqrt(6 / 100)
    assert np.abs(w).max() <= bound
    assert np.abs(w).max() > 0.99 * bound
    assert w.std() == pytest.approx(bound / np.sqrt(3), rel=0.05)


def test_what_is_added_is_zero_and_what_scales_is_one(artifact, parameters_of):
    values = drawn(artifact, parameters_of)
    assert not values["b"].any()
    assert not values["row"].any()
    assert (values["scale"] == 1).all()


def test_the_seed_alone_decides(artifact, parameters_of):
    first, same, other = (drawn(artifact, parameters_of, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first["w"], same["w"])
    assert (first["w"] != other["w"]).all()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("g (float[N,1] X) => (float[N,1] y) <float[1,1] w = {2}, float[1] b = {3}> { y = Gemm(X, w, b) }", "w"),
        ("g (float[N,1] X) => (float[N,1] y) <float[1,1] w = {2}> { y = MatMul(X, w) }", "w"),
        ("g (float[N,1,5] X) => (float[N,1,5] y) <float[1,1,1] w = {2}, float[1] b = {3}> { y = Conv(X, w, b) }", "w"),
    ],
)
def test_a_weight_of_one_number_is_drawn_too(from_text, parameters_of, text, name):
    values = {seed: drawn(from_text(text), parameters_of, seed) for seed in (0, 1)}
    assert values[0][name] != values[1][name]
    assert all(v["b"] == 0 for v in values.values() if "b" in v)


def test_normalization_starts_as_the_identity(from_text, parameters_of):
    text = """g (float[N,3] X) => (float[N,3] y) <float[3] s = {5, 5, 5}, float[3] t = {5, 5, 5}>
     { y = LayerNormalization(X, s, t) }"""
    values = drawn(from_text(text), parameters_of)
    assert values["s"].tolist() == [1, 1, 1]
    assert values["t"].tolist() == [0, 0, 0]
