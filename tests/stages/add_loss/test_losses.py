from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from sklearn import metrics

from ortpipe.errors import ConfigError
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive

N = 7
# Forward models whose output is X, seen as values, logits or probabilities; K columns.
VALUES = "g (float[N,K] X) => (float[N,K] y) <float[K] w = {ZEROS}> { y = Add(X, w) }"
SIGMOID = "g (float[N,K] X) => (float[N,K] y) <float[K] w = {ZEROS}> { z = Add(X, w) y = Sigmoid(z) }"
TWO = """g (float[N,1] X) => (float[N,2] y) <float[1] w = {ZEROS}, float[1] one = {1}>
 { z = Add(X, w) p = Sigmoid(z) q = Sub(one, p) y = Concat<axis=1>(q, p) }"""
SOFTMAX = "g (float[N,K] X) => (float[N,K] y) <float[K] w = {ZEROS}> { z = Add(X, w) y = Softmax(z) }"
# name: graph, K, task, logits, number of classes
MODELS = {
    "one value": (VALUES, 1, "regression", None, None),
    "three values": (VALUES, 3, "regression", None, None),
    "one probability": (SIGMOID, 1, "binary", None, 2),
    "one probability with logits": (SIGMOID, 1, "binary", "z", 2),
    "one logit": (VALUES, 1, "binary", "y", 2),
    "two probabilities": (TWO, 1, "binary", None, 2),
    "two probabilities with logits": (TWO, 1, "binary", "z", 2),
    "softmax": (SOFTMAX, 4, "multiclass", None, 4),
    "softmax with logits": (SOFTMAX, 4, "multiclass", "z", 4),
    "raw scores": (VALUES, 4, "multiclass", "y", 4),
    "labels": (SIGMOID, 3, "multilabel", None, None),
    "labels with logits": (SIGMOID, 3, "multilabel", "z", None),
    "raw labels": (VALUES, 3, "multilabel", "y", None),
}


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def two_sided(z, y):
    return -(y * np.log(sigmoid(z)) + (1 - y) * np.log(1 - sigmoid(z)))


# loss: per-row terms in float64 from the input x and the label y
TERMS = {
    "l1": lambda loss, x, y: np.abs(x - y),
    "l2": lambda loss, x, y: (x - y) ** 2,
    "elastic": lambda loss, x, y: loss.l1_weight * np.abs(x - y) + loss.l2_weight * (x - y) ** 2,
    "log": lambda loss, x, y: two_sided(x, y),
    "cross_entropy": lambda loss, x, y: -np.log(np.take_along_axis(softmax(x), y, axis=1)),
}
MEMBERS = {
    "l1": LOSSES["l1"](),
    "l2": LOSSES["l2"](),
    "elastic": LOSSES["elastic"](l1_weight=0.3, l2_weight=0.8),
    "log": LOSSES["log"](),
    "cross_entropy": LOSSES["cross_entropy"](),
}
CASES = [(name, model) for name, loss in MEMBERS.items() for model, row in MODELS.items() if row[2] in loss.tasks]


@pytest.fixture(scope="module")
def forward(from_text):
    def make(name, dtype="float32"):
        text, width, task, logits, classes = MODELS[name]
        text = text.replace("{ZEROS}", "{" + ", ".join(["0"] * width) + "}").replace("K]", f"{width}]")
        known = tuple(range(classes)) if classes else None
        return from_text(text, dtype=dtype, task=task, logits=logits, classes=known)

    return make


def rows(name, scale=1.0):
    _, width, task, _, classes = MODELS[name]
    rng = np.random.default_rng(3)
    x = rng.normal(size=(N, width)) * scale
    if task == "regression":
        return x, rng.normal(size=(N, width))
    if task == "multilabel":
        return x, rng.integers(0, 2, (N, width))
    return x, np.arange(N).reshape(-1, 1) % classes


def feeds_of(artifact, x, y, weight=None):
    dtype = np.float64 if artifact.model.graph.input[0].type.tensor_type.elem_type == 11 else np.float32
    classes = artifact.facts.task in ("binary", "multiclass")
    feeds = {"X": x.astype(dtype), artifact.facts.label: y.astype(np.int64 if classes else dtype)}
    if weight is not None:
        feeds[artifact.facts.sample_weight] = weight.astype(dtype).reshape(-1, 1)
    return feeds


def test_the_table_of_members_is_the_catalogue():
    assert set(MEMBERS) == set(LOSSES) == set(TERMS)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize(("loss", "model"), CASES)
def test_its_value_is_its_formula_in_numpy(forward, run, loss, model, reduction, weighted, dtype):
    x, y = rows(model)
    weight = np.random.default_rng(4).uniform(0.5, 2, N) if weighted else None
    artifact = add_loss(forward(model, dtype), AddLossConfig(MEMBERS[loss], reduction, weighted))
    got = run(artifact.model, feeds_of(artifact, x, y, weight))[artifact.facts.loss]
    per_row = TERMS[loss](MEMBERS[loss], x, y).sum(axis=1)
    expected = (per_row * (1 if weight is None else weight)).sum() / (N if reduction == "mean" else 1)
    assert got.shape == ()
    assert got.dtype == dtype
    assert got == pytest.approx(expected, rel=1e-12 if dtype == "float64" else 1e-5)


# scikit-learn 1.7–1.9, sklearn.metrics: metric of (label, prediction from x, weights)
PUBLISHED = {
    ("l1", "one value"): lambda y, x, w: metrics.mean_absolute_error(y, x, sample_weight=w),
    ("l2", "one value"): lambda y, x, w: metrics.mean_squared_error(y, x, sample_weight=w),
    ("l1", "three values"): lambda y, x, w: 3 * metrics.mean_absolute_error(y, x, sample_weight=w),
    ("l2", "three values"): lambda y, x, w: 3 * metrics.mean_squared_error(y, x, sample_weight=w),
    ("log", "one logit"): lambda y, x, w: metrics.log_loss(y.ravel(), sigmoid(x).ravel(), sample_weight=w),
    ("log", "two probabilities"): lambda y, x, w: metrics.log_loss(y.ravel(), sigmoid(x).ravel(), sample_weight=w),
    ("cross_entropy", "softmax"): lambda y, x, w: metrics.log_loss(y.ravel(), softmax(x), sample_weight=w),
    ("cross_entropy", "raw scores"): lambda y, x, w: metrics.log_loss(y.ravel(), softmax(x), sample_weight=w),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("loss", "model"), PUBLISHED)
def test_its_mean_is_the_metric_of_scikit_learn(forward, run, loss, model, weighted):
    x, y = rows(model)
    weight = np.random.default_rng(4).uniform(0.5, 2, N) if weighted else None
    artifact = add_loss(forward(model, "float64"), AddLossConfig(MEMBERS[loss], "mean", weighted))
    got = run(artifact.model, feeds_of(artifact, x, y, weight))[artifact.facts.loss]
    expected = PUBLISHED[loss, model](y, x, weight)
    if weighted:  # scikit-learn divides by Σ w, we by the number of rows
        expected *= weight.sum() / N
    assert got == pytest.approx(expected, rel=1e-12)


# The training build has no double kernel for the gradient of Concat, which two probabilities pass through.
@pytest.mark.parametrize(
    ("loss", "model", "dtype"),
    [
        (*case, dtype)
        for case in CASES
        for dtype in ("float32", "float64")
        if case[0] in ("log", "cross_entropy") and (case[1], dtype) != ("two probabilities", "float64")
    ],
)
def test_it_is_finite_with_its_gradient_at_huge_logits(forward, run, loss, model, dtype):
    x, y = rows(model)
    x = np.where(x > 0, 1e4, -1e4)
    artifact = derive(add_loss(forward(model, dtype), AddLossConfig(MEMBERS[loss])), DeriveConfig(inputs=("X",)))
    results = run(artifact.model, feeds_of(artifact, x, y))
    assert all(np.isfinite(value).all() for value in results.values())
    if MODELS[model][3] is not None:
        per_row = sum(abs(x[i, k]) * 2 for i in range(N) for k in range(x.shape[1]))
        assert 0 <= results[artifact.facts.loss] <= per_row
        slope = sigmoid(np.clip(x, -700, 700)) - y if loss == "log" else softmax(x) - np.eye(4)[y.ravel()]
        np.testing.assert_allclose(results[artifact.facts.input_gradients["X"]], slope / N, atol=1e-6)


@pytest.mark.parametrize("model", ["one logit", "one probability with logits", "raw labels"])
def test_the_gradient_of_log_at_logit_zero_is_half_minus_the_label(forward, run, model):
    x, y = rows(model, scale=0.0)
    loss = AddLossConfig(MEMBERS["log"], "sum")
    artifact = derive(add_loss(forward(model, "float64"), loss), DeriveConfig(inputs=("X",)))
    results = run(artifact.model, feeds_of(artifact, x, y))
    np.testing.assert_allclose(results[artifact.facts.input_gradients["X"]], 0.5 - y)


@pytest.mark.parametrize(("loss", "model"), [("log", "one probability"), ("cross_entropy", "softmax")])
def test_probabilities_are_clipped_at_eps(forward, run, loss, model):
    member = dataclasses.replace(MEMBERS[loss], eps=0.01)
    x, y = rows(model)
    width = x.shape[1]
    x = np.full_like(x, -1e3)
    if width > 1:
        x[np.arange(N), (y.ravel() + 1) % width] = 1e3
        expected = -math.log(0.01)
    else:
        y = np.ones_like(y)
        expected = -math.log(0.01)
    artifact = add_loss(forward(model, "float64"), AddLossConfig(member))
    got = run(artifact.model, feeds_of(artifact, x, y))[artifact.facts.loss]
    assert got == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["l1", "elastic"])
def test_the_derivative_of_an_absolute_error_of_zero_is_zero(forward, run, name):
    x, _ = rows("one value")
    artifact = derive(
        add_loss(forward("one value", "float64"), AddLossConfig(MEMBERS[name])), DeriveConfig(inputs=("X",))
    )
    results = run(artifact.model, feeds_of(artifact, x, x))
    assert not results[artifact.facts.input_gradients["X"]].any()


@pytest.mark.parametrize("name", ["log", "cross_entropy"])
@pytest.mark.parametrize("eps", [0, -1e-3, 0.5, math.nan])
def test_an_eps_outside_zero_to_half_is_refused(name, eps):
    with pytest.raises(ConfigError, match=r"^eps must"):
        LOSSES[name](eps=eps)


@pytest.mark.parametrize("weights", [(-1, 1), (1, -1), (0, 0), (math.nan, 1)])
def test_elastic_weights_that_are_negative_or_all_zero_are_refused(weights):
    with pytest.raises(ConfigError, match=r"l1_weight|l2_weight"):
        LOSSES["elastic"](*weights)
