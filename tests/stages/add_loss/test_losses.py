from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import special
from sklearn import _loss, metrics
from sklearn.linear_model import _sgd_fast as sgd

from ortpipe.errors import ConfigError, LossError
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


def cosine(a, b):
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def smooth(y, count, epsilon):
    return np.eye(count)[y.ravel()] * (1 - epsilon) + epsilon / count


def crammer_singer(z, y):
    own = np.take_along_axis(z, y, axis=1)
    others = np.where(np.eye(z.shape[1], dtype=bool)[y.ravel()], -np.inf, z)
    return np.maximum(0, 1 + others.max(axis=1, keepdims=True) - own)


def focal(p, gamma):
    return -((1 - p) ** gamma) * np.log(p)


def focal_of(loss, x, y):
    if x.shape[1] == 4:  # classes
        return focal(np.take_along_axis(softmax(x), y, axis=1), loss.gamma)
    return focal(np.where(y == 1, sigmoid(x), sigmoid(-x)), loss.gamma)


def margin(x, y):
    return np.where(y == 1, x, -x)


# loss: per-row terms in float64 from the input x and the label y
TERMS = {
    "l1": lambda loss, x, y: np.abs(x - y),
    "l2": lambda loss, x, y: (x - y) ** 2,
    "elastic": lambda loss, x, y: loss.l1_weight * np.abs(x - y) + loss.l2_weight * (x - y) ** 2,
    "log": lambda loss, x, y: two_sided(x, y * (1 - loss.smoothing) + loss.smoothing / 2),
    "cross_entropy": lambda loss, x, y: -np.log(softmax(x)) * smooth(y, 4, loss.smoothing),
    "huber": lambda loss, x, y: special.huber(loss.delta, x - y),
    "quantile": lambda loss, x, y: np.maximum(loss.quantiles * (y - x), (np.array(loss.quantiles) - 1) * (y - x)),
    "epsilon_insensitive": lambda loss, x, y: np.maximum(0, np.abs(x - y) - loss.epsilon),
    "squared_epsilon_insensitive": lambda loss, x, y: np.maximum(0, np.abs(x - y) - loss.epsilon) ** 2,
    "poisson": lambda loss, x, y: np.exp(x) - y * x,
    "gamma": lambda loss, x, y: x + y * np.exp(-x),
    "tweedie": lambda loss, x, y: (
        np.exp((2 - loss.power) * x) / (2 - loss.power) - y * np.exp((1 - loss.power) * x) / (1 - loss.power)
    ),
    "hinge": lambda loss, x, y: crammer_singer(x, y) if x.shape[1] == 4 else np.maximum(0, 1 - margin(x, y)),
    "squared_hinge": lambda loss, x, y: np.maximum(0, 1 - margin(x, y)) ** 2,
    "modified_huber": lambda loss, x, y: np.where(
        margin(x, y) >= -1, np.maximum(0, 1 - margin(x, y)) ** 2, -4 * margin(x, y)
    ),
    "perceptron": lambda loss, x, y: np.maximum(0, -margin(x, y)),
    "squared_margin": lambda loss, x, y: (x - (2 * y - 1)) ** 2,
    "one_vs_rest": lambda loss, x, y: np.maximum(0, 1 - margin(x, np.eye(4)[y.ravel()])) ** 2,
    "focal": focal_of,
    "contrastive": lambda loss, x, y: y * x**2 + (1 - y) * np.maximum(loss.margin - x, 0) ** 2,
    "cosine": lambda loss, x, y: 1 - cosine(x, y)[:, None],
}
MEMBERS = {
    "l1": LOSSES["l1"](),
    "l2": LOSSES["l2"](),
    "elastic": LOSSES["elastic"](l1_weight=0.3, l2_weight=0.8),
    "log": LOSSES["log"](),
    "cross_entropy": LOSSES["cross_entropy"](),
    "huber": LOSSES["huber"](delta=0.7),
    "quantile": LOSSES["quantile"](quantiles=(0.9,)),
    "epsilon_insensitive": LOSSES["epsilon_insensitive"](epsilon=0.3),
    "squared_epsilon_insensitive": LOSSES["squared_epsilon_insensitive"](epsilon=0.3),
    "poisson": LOSSES["poisson"](),
    "gamma": LOSSES["gamma"](),
    "tweedie": LOSSES["tweedie"](power=1.4),
    "hinge": LOSSES["hinge"](),
    "squared_hinge": LOSSES["squared_hinge"](),
    "modified_huber": LOSSES["modified_huber"](),
    "perceptron": LOSSES["perceptron"](),
    "squared_margin": LOSSES["squared_margin"](),
    "one_vs_rest": LOSSES["one_vs_rest"](loss="squared_hinge"),
    "focal": LOSSES["focal"](gamma=1.5),
    "contrastive": LOSSES["contrastive"](margin=0.8),  # of TensorFlow Addons 0.23, losses/contrastive.py
    "cosine": LOSSES["cosine"](),
}
RAW = (
    "hinge",
    "squared_hinge",
    "modified_huber",
    "perceptron",
    "squared_margin",
    "one_vs_rest",
)  # they read raw scores
CASES = [
    (name, model)
    for name, loss in MEMBERS.items()
    for model, row in MODELS.items()
    if row[2] in loss.tasks and not (name in RAW and row[3] is None)
    if (name, model) != ("cosine", "one value")
]
VARIANTS = [("sum", False, "float64"), ("mean", True, "float64"), ("mean", False, "float32"), ("sum", True, "float32")]


@pytest.fixture(scope="module")
def forward(from_text):
    def make(name, dtype="float32"):
        text, width, task, logits, classes = MODELS[name]
        text = text.replace("{ZEROS}", "{" + ", ".join(["0"] * width) + "}").replace("K]", f"{width}]")
        known = tuple(range(classes)) if classes else None
        return from_text(text, dtype=dtype, task=task, logits=logits, classes=known)

    return make


def rows(name, scale=1.0, loss=None):
    _, width, task, _, classes = MODELS[name]
    rng = np.random.default_rng(3)
    x = rng.normal(size=(N, width)) * scale
    if task == "regression":
        y = rng.normal(size=(N, width))
        if loss == "contrastive":
            return np.abs(x), (y > 0).astype(float)
        return x, np.floor(np.exp(y)) if loss in ("poisson", "tweedie") else np.exp(y) if loss == "gamma" else y
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
    assert set(MEMBERS) == set(TERMS)
    # tests of their own: of what stands for another loss, of sequences, survival and pairs, of those that hold files
    elsewhere = {"auto", "cox", "ctc", "discrete_hazard", "info_nce", "onnx"}
    assert {*MEMBERS, *elsewhere} == set(LOSSES)


@pytest.mark.parametrize(("reduction", "weighted", "dtype"), VARIANTS)
@pytest.mark.parametrize(("loss", "model"), CASES)
def test_its_value_is_its_formula_in_numpy(forward, run, loss, model, reduction, weighted, dtype):
    x, y = rows(model, loss=loss)
    weight = np.random.default_rng(4).uniform(0.5, 2, N) if weighted else None
    artifact = add_loss(forward(model, dtype), AddLossConfig(MEMBERS[loss], reduction, weighted))
    got = run(artifact.model, feeds_of(artifact, x, y, weight))[artifact.facts.loss]
    per_row = TERMS[loss](MEMBERS[loss], x, y).sum(axis=1)
    expected = (per_row * (1 if weight is None else weight)).sum() / (N if reduction == "mean" else 1)
    assert got.shape == ()
    assert got.dtype == dtype
    assert got == pytest.approx(expected, rel=1e-12 if dtype == "float64" else 1e-5)


@pytest.mark.parametrize(("loss", "model"), CASES)
def test_its_gradient_is_that_of_central_differences(forward, run, central_differences, loss, model):
    x, y = rows(model, loss=loss)
    scored = add_loss(forward(model, "float64"), AddLossConfig(MEMBERS[loss], "sum"))
    feeds, artifact = feeds_of(scored, x, y), derive(scored, DeriveConfig(inputs=("X",)))
    slope = central_differences(scored.model, scored.facts.loss, feeds, "X")
    got = run(artifact.model, feeds)[artifact.facts.input_gradients["X"]]
    np.testing.assert_allclose(got, slope, rtol=1e-6, atol=1e-7)


ELEMENTS = [case for case in CASES if not case[1].startswith("two") and case[1] != "one value"]


@pytest.mark.parametrize(("loss", "model"), ELEMENTS)
def test_elements_are_summed_as_rows_of_their_own(from_text, forward, run, loss, model):
    text, width, task, logits, classes = MODELS[model]
    text = text.replace("{ZEROS}", "{" + ", ".join(["0"] * width) + "}").replace("[N,K]", f"[N,2,{width}]")
    facts = {"task": task, "logits": logits, "classes": tuple(range(classes)) if classes else None}
    deep = from_text(text.replace("K]", f"{width}]"), dtype="float64", **facts)
    x, y = (array[:6] for array in rows(model, loss=loss))
    flat = add_loss(forward(model, "float64"), AddLossConfig(MEMBERS[loss], "sum"))
    expected = run(flat.model, feeds_of(flat, x, y))["loss"]
    scored = add_loss(deep, AddLossConfig(MEMBERS[loss], "sum", elements="sum"))
    feeds = {name: array.reshape(3, 2, -1) for name, array in feeds_of(scored, x, y).items()}
    assert run(scored.model, feeds)["loss"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("loss", MEMBERS)
def test_it_is_computed_in_halves(forward, run, loss):
    model = next(model for name, model in CASES if name == loss)
    x, y = rows(model, loss=loss)
    x = np.zeros_like(x) if loss == "cosine" else x
    artifact = derive(add_loss(forward(model, "float16"), AddLossConfig(MEMBERS[loss])), DeriveConfig(inputs=("X",)))
    half = {name: a.astype(np.float16) if a.dtype.kind == "f" else a for name, a in feeds_of(artifact, x, y).items()}
    assert all(np.isfinite(value).all() for value in run(artifact.model, half).values())


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
    ("quantile", "one value"): lambda y, x, w: metrics.mean_pinball_loss(y, x, sample_weight=w, alpha=0.9),
    ("hinge", "one logit"): lambda y, x, w: metrics.hinge_loss(y.ravel(), x.ravel(), sample_weight=w),
}


LOGIT, VALUE = "one logit", "one value"
# likewise its losses of single numbers, by label (±1 of two classes) and score
SINGLE = {
    "huber": (VALUE, lambda y, x: _loss.HuberLoss(delta=0.7).loss(np.array([y]), np.array([x]))[0]),
    "quantile": (VALUE, lambda y, x: _loss.PinballLoss(quantile=0.9).loss(np.array([y]), np.array([x]))[0]),
    "epsilon_insensitive": (VALUE, lambda y, x: sgd.EpsilonInsensitive(0.3).py_loss(x, y)),
    "squared_epsilon_insensitive": (VALUE, lambda y, x: sgd.SquaredEpsilonInsensitive(0.3).py_loss(x, y)),
    "poisson": (VALUE, lambda y, x: _loss.HalfPoissonLoss().loss(np.array([y]), np.array([x]))[0]),
    "gamma": (VALUE, lambda y, x: _loss.HalfGammaLoss().loss(np.array([y]), np.array([x]))[0]),
    "hinge": (LOGIT, lambda s, x: sgd.Hinge(1.0).py_loss(x, s)),
    "squared_hinge": (LOGIT, lambda s, x: sgd.SquaredHinge(1.0).py_loss(x, s)),
    "modified_huber": (LOGIT, lambda s, x: sgd.ModifiedHuber().py_loss(x, s)),
}


@pytest.mark.parametrize("loss", SINGLE)
def test_it_is_the_loss_of_scikit_learns_estimators(forward, run, loss):
    model, published = SINGLE[loss]
    x, y = rows(model, scale=2.0, loss=loss)
    artifact = add_loss(forward(model, "float64"), AddLossConfig(MEMBERS[loss], "sum"))
    got = run(artifact.model, feeds_of(artifact, x, y))[artifact.facts.loss]
    labels = y * 2.0 - 1 if model == LOGIT else y
    expected = sum(map(published, labels.ravel().tolist(), x.ravel().tolist()))
    assert got == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("power", [-1.0, 0.0, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("link", ["log", "identity"])
def test_tweedie_of_every_power_is_half_scikit_learns_deviance_but_for_a_constant(from_text, run, power, link):
    text = "g (float[N,1] X) => (float[N,1] y) <float[1] w = {0}> { z = Add(X, w) y = Exp(z) }"
    text = text if link == "identity" else VALUES.replace("K]", "1]").replace("{ZEROS}", "{0}")
    loss = LOSSES["tweedie"](power, link)
    artifact = add_loss(from_text(text, dtype="float64"), AddLossConfig(loss, "mean"))
    y, other = np.random.default_rng(1).uniform(0.5, 2, (2, N, 1))

    def value(mean):
        return run(artifact.model, {"X": np.log(mean), "label": y})["loss"]

    def published(mean):
        return metrics.mean_tweedie_deviance(y.ravel(), mean.ravel(), power=power) / 2

    assert value(other) - value(y) == pytest.approx(published(other) - published(y), rel=1e-12)


@pytest.mark.parametrize(("loss", "expected"), [("poisson", np.exp(0.5) - 2 * 0.5), ("gamma", 0.5 + 2 * np.exp(-0.5))])
def test_with_the_identity_the_prediction_is_the_mean(from_text, run, loss, expected):
    text = "g (float[N,1] X) => (float[N,1] y) <float[1] w = {0}> { z = Add(X, w) y = Exp(z) }"
    artifact = add_loss(from_text(text, dtype="float64"), AddLossConfig(LOSSES[loss](link="identity")))
    got = run(artifact.model, {"X": np.array([[0.5]]), "label": np.array([[2.0]])})["loss"]
    assert got == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("nodes", "fits"),
    [
        ("y = Add(X, w)", False),
        ("y = Relu(X)", False),
        ("y = Softplus(X)", True),
        ("a = Exp(X) y = Reshape(a, s)", True),
        ("a = Relu(X) e = Constant <value_float = 0.001> () y = Add(a, e)", True),
        ("a = Relu(X) y = Add(a, w)", False),
        ("e = Constant <value_float = 0.001> () y = Clip(X, e)", True),
        ("a = Constant <value_float = -1.0> () e = Constant <value_float = 1.0> () y = Clip(X, a, e)", False),
        ("e = Constant <value_float = 0.001> () y = Max(X, X, e)", True),
        ("a = Exp(X) b = Softplus(X) y = Div(a, b)", True),
        ("a = Exp(X) y = Mul(a, w)", False),
    ],
)
@pytest.mark.parametrize("loss", ["poisson", "gamma", "tweedie"])
def test_the_identity_wants_a_graph_that_keeps_the_mean_positive(from_text, nodes, fits, loss):
    text = f"g (float[N,1] X) => (float[N,1] y) <float[1] w = {{1}}, int64[2] s = {{-1, 1}}> {{ {nodes} }}"
    config = AddLossConfig(LOSSES[loss](link="identity"))
    if fits:
        add_loss(from_text(text), config)
        with pytest.raises(LossError, match=r"always positive: a mean(.|\n)*loss\.link=identity"):
            add_loss(from_text(text), AddLossConfig(LOSSES[loss]()))
    else:
        with pytest.raises(LossError, match=r"always positive(.|\n)*loss\.link=log"):
            add_loss(from_text(text), config)


@pytest.mark.parametrize("power", [0.5, 11, -11, math.nan])
def test_a_power_that_no_tweedie_has_is_refused(power):
    with pytest.raises(ConfigError, match="power must be"):
        LOSSES["tweedie"](power)


# where a loss has a kink or changes its piece: score, label and the derivative there
KINKS = {
    "huber": [(VALUE, 0.7, 0.0, 0.7), (VALUE, -0.7, 0.0, -0.7), (VALUE, 0.0, 0.0, 0.0)],
    "quantile": [(VALUE, 1.0, 1.0, -0.4), (VALUE, 0.5, 1.0, -0.9), (VALUE, 1.5, 1.0, 0.1)],
    "epsilon_insensitive": [(VALUE, 1.5, 1.0, 0.0), (VALUE, 1.0, 1.0, 0.0)],
    "squared_epsilon_insensitive": [(VALUE, 1.5, 1.0, 0.0), (VALUE, 1.0, 1.0, 0.0)],
    "hinge": [(LOGIT, 1.0, 1, 0.0), (LOGIT, -1.0, 0, 0.0)],
    "squared_hinge": [(LOGIT, 1.0, 1, 0.0), (LOGIT, -1.0, 0, 0.0)],
    "modified_huber": [(LOGIT, 1.0, 1, 0.0), (LOGIT, -1.0, 1, -4.0), (LOGIT, 1.0, 0, 4.0)],
}


@pytest.mark.parametrize(("loss", "model", "x", "y", "slope"), [(k, *case) for k, v in KINKS.items() for case in v])
def test_its_derivative_where_its_pieces_meet(forward, run, loss, model, x, y, slope):
    member = dataclasses.replace(MEMBERS[loss], **({"epsilon": 0.5} if "epsilon" in loss else {}))  # 1.5 − 1 is exact
    artifact = derive(add_loss(forward(model, "float64"), AddLossConfig(member)), DeriveConfig(inputs=("X",)))
    results = run(artifact.model, feeds_of(artifact, np.array([[x]]), np.array([[y]])))
    assert results[artifact.facts.input_gradients["X"]] == pytest.approx(slope, abs=1e-15)


@pytest.mark.parametrize("loss", RAW)
def test_a_loss_of_raw_scores_refuses_probabilities_without_them(forward, loss):
    with pytest.raises(LossError, match=r"raw scores(.|\n)*convert's source.scores=logits"):
        add_loss(forward("softmax" if loss == "one_vs_rest" else "one probability"), AddLossConfig(MEMBERS[loss]))


def test_hinge_of_classes_is_that_of_scikit_learn(forward, run):
    x, y = rows("raw scores")
    artifact = add_loss(forward("raw scores", "float64"), AddLossConfig(MEMBERS["hinge"]))
    got = run(artifact.model, feeds_of(artifact, x, y))["loss"]
    assert got == pytest.approx(metrics.hinge_loss(y.ravel(), x), rel=1e-12)


# torchvision 0.2x, ops/focal_loss.py: p = σ(x); pₜ = p·y + (1 − p)·(1 − y); αₜ = α·y + (1 − α)·(1 − y)
@pytest.mark.parametrize("model", ["one logit", "two probabilities", "labels with logits"])
def test_focal_is_that_of_torchvision(forward, run, model):
    x, y = rows(model)
    p = sigmoid(x)
    p_t, alpha_t = p * y + (1 - p) * (1 - y), 0.25 * y + 0.75 * (1 - y)
    expected = (alpha_t * (1 - p_t) ** 2 * two_sided(x, y)).sum()
    artifact = add_loss(forward(model, "float64"), AddLossConfig(LOSSES["focal"](2.0, 0.25), "sum"))
    assert run(artifact.model, feeds_of(artifact, x, y))["loss"] == pytest.approx(expected, rel=1e-12)


def test_focal_weighs_two_classes_in_float32_without_cancellation(forward, run):
    x, y = np.array([[-1e4]], np.float32), np.array([[1]])
    artifact = add_loss(forward("one logit"), AddLossConfig(LOSSES["focal"](2.0, 0.1)))
    assert run(artifact.model, feeds_of(artifact, x, y))["loss"] == pytest.approx(0.1 * 1e4, rel=1e-7)


def test_focal_weighs_classes(forward, run):
    x, y = rows("raw scores")
    alpha = (0.5, 1.0, 2.0, 3.0)
    artifact = add_loss(forward("raw scores", "float64"), AddLossConfig(LOSSES["focal"](2.0, alpha), "sum"))
    expected = (np.array(alpha)[y] * focal(np.take_along_axis(softmax(x), y, axis=1), 2.0)).sum()
    assert run(artifact.model, feeds_of(artifact, x, y))["loss"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("model", "alpha"), [("raw scores", 0.25), ("raw scores", (1.0,)), ("one logit", (1.0, 2.0))])
def test_focal_refuses_weights_that_are_not_of_its_classes(forward, model, alpha):
    with pytest.raises(LossError, match=r"loss\.alpha"):
        add_loss(forward(model), AddLossConfig(LOSSES["focal"](alpha=alpha)))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("model", ["one logit", "raw scores", "two probabilities", "softmax"])
def test_focal_has_a_finite_gradient_where_the_model_is_sure(forward, run, model, gamma):
    x, y = rows(model)
    x = np.where(x > 0, 1e4, -1e4)
    loss = AddLossConfig(LOSSES["focal"](gamma))
    artifact = derive(add_loss(forward(model), loss), DeriveConfig(inputs=("X",)))
    assert all(np.isfinite(value).all() for value in run(artifact.model, feeds_of(artifact, x, y)).values())


# torch.nn.CrossEntropyLoss(label_smoothing=ε): (1 − ε)·(−log p[y]) + ε/K·Σₖ −log pₖ
@pytest.mark.parametrize("model", ["raw scores", "softmax"])
def test_smoothed_cross_entropy_is_pytorchs(forward, run, model):
    x, y = rows(model)
    artifact = add_loss(forward(model, "float64"), AddLossConfig(LOSSES["cross_entropy"](smoothing=0.1)))
    nll = -np.log(softmax(x))
    expected = (0.9 * np.take_along_axis(nll, y, axis=1).ravel() + 0.1 / 4 * nll.sum(axis=1)).mean()
    assert run(artifact.model, feeds_of(artifact, x, y))["loss"] == pytest.approx(expected, rel=1e-12)


# Keras, losses.BinaryCrossentropy(label_smoothing=ε): of labels y·(1 − ε) + ε/2
@pytest.mark.parametrize("model", ["one logit", "two probabilities", "labels"])
def test_smoothed_log_loss_is_that_of_smoothed_labels(forward, run, model):
    x, y = rows(model)
    artifact = add_loss(forward(model, "float64"), AddLossConfig(LOSSES["log"](smoothing=0.2), "sum"))
    expected = two_sided(x, y * 0.8 + 0.1).sum()
    assert run(artifact.model, feeds_of(artifact, x, y))["loss"] == pytest.approx(expected, rel=1e-12)


def test_cosine_of_a_zero_vector_is_one_with_a_finite_gradient(forward, run):
    x, y = rows("three values", scale=0.0)
    artifact = add_loss(forward("three values", "float64"), AddLossConfig(MEMBERS["cosine"]))
    artifact = derive(artifact, DeriveConfig(inputs=("X",)))
    results = run(artifact.model, feeds_of(artifact, x, y))
    assert results["loss"] == 1
    assert np.isfinite(results[artifact.facts.input_gradients["X"]]).all()


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
