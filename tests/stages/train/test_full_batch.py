"""lbfgs: the optimum that scikit-learn finds on the same rows."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import scale

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConfigError, ConvergenceError, TrainError
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources import SOURCES
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.stage import penalty
from ortpipe.stages.train.config import CheckpointConfig, ClipConfig, EarlyStopConfig, TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train
from ortpipe.stages.train.training import Epoch

LBFGS = OPTIMIZERS["lbfgs"]


def rows(name, count=200):
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    place = np.random.default_rng(0).permutation(len(X))[:count]
    y = scale(y) if name == "diabetes" else y
    return Rows({"X": scale(X[place])}, y[place])


def gradients(estimator, data, loss, terms=None, reduction="mean"):
    exact = ConvertConfig(SOURCES["sklearn"]("unused.here"), dtype="float64")
    lossy = add_loss(convert(estimator, exact, data=data), AddLossConfig(LOSSES[loss](), reduction))
    return derive(penalty(lossy, PenaltyConfig(terms)) if terms else lossy)


@pytest.mark.parametrize(("name", "loss"), [("breast_cancer", "log"), ("wine", "cross_entropy")])
def test_logistic_regression_ends_at_scikit_learns_optimum(name, loss):
    part = rows(name)
    published = LogisticRegression(C=2.0, tol=1e-10, max_iter=10_000).fit(part.inputs["X"], part.label)
    source = gradients(published, Data(part), loss, {"coefficient": {"l2": 1 / 4}}, "sum")
    config = TrainConfig(LBFGS(tolerance=1e-9), epochs=5000, init="random")
    result = train(source, config, data=Data(part))
    np.testing.assert_allclose(result.tensors["parameter/coefficient"].T, published.coef_, atol=1e-6)
    P = published.predict_proba(part.inputs["X"])[np.arange(len(part)), part.label]
    optimum = -np.log(P).sum() + (published.coef_**2).sum() / 4
    assert result.tensors["losses/step"][-1] == pytest.approx(optimum, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "kind", "loss"), [("diabetes", MLPRegressor, "l2"), ("wine", MLPClassifier, "cross_entropy")]
)
def test_a_network_goes_scikit_learns_way_to_its_optimum(name, kind, loss):
    part, settings = (
        rows(name, 120),
        {"hidden_layer_sizes": (5,), "activation": "tanh", "alpha": 0.1, "solver": "lbfgs"},
    )
    estimator = kind(**settings, random_state=0, tol=1e-9, max_fun=10**6, max_iter=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(part.inputs["X"], part.label)
        source_terms = {f"layer{i}.weight": {"l2": 0.1 / 2 / len(part)} for i in range(2)}
        half = (
            2 if name == "diabetes" else 1
        )  # scikit-learn's squared error is halved: its penalty weighs twice as much
        terms = {key: {"l2": half * term["l2"]} for key, term in source_terms.items()}
        source = gradients(estimator, Data(part), loss, terms)
        estimator.set_params(max_iter=20_000, warm_start=True).fit(part.inputs["X"], part.label)
    result = train(source, TrainConfig(LBFGS(tolerance=1e-9 * half), epochs=20_000), data=Data(part))
    assert result.tensors["losses/step"][-1] / half == pytest.approx(estimator.loss_, abs=1e-6)


def test_least_squares_in_float32_are_reached_too():
    part = rows("diabetes", 442)
    published = LinearRegression().fit(part.inputs["X"], part.label)
    source = derive(
        add_loss(convert(LinearRegression().fit(part.inputs["X"], 0 * part.label)), AddLossConfig(LOSSES["l2"]()))
    )
    result = train(source, TrainConfig(LBFGS(), epochs=100), data=Data(part))
    assert result.tensors["parameter/coefficient"].dtype == np.float32
    np.testing.assert_allclose(result.tensors["parameter/coefficient"].ravel(), published.coef_, atol=2e-3)


@pytest.fixture
def problem():
    part = rows("diabetes")
    return gradients(LinearRegression().fit(part.inputs["X"], part.label * 0), Data(part), "l2"), part


def test_an_epoch_is_an_iteration_and_the_same_bytes_come_again(problem):
    source, part = problem
    seen = []
    config = TrainConfig(LBFGS(), epochs=3, checkpoint=CheckpointConfig(epochs=1))
    first = train(source, config, data=Data(part, part), report=seen.append)
    assert [type(event) for event in seen] == [Epoch] * 3
    assert [(e.number, e.epochs, e.rate) for e in seen] == [(1, 3, None), (2, 3, None), (3, 3, None)]
    np.testing.assert_allclose(first.tensors["losses/validation"], first.tensors["losses/train"], rtol=1e-9)
    assert first.digest() == train(source, config, data=Data(part, part)).digest()


def test_validation_may_be_every_few_iterations_and_ends_with_the_last(problem):
    source, part = problem
    each, third = (
        train(source, TrainConfig(LBFGS(), epochs=8, validate_every=k), data=Data(part, part)).tensors[
            "losses/validation"
        ]
        for k in (1, 3)
    )
    evaluated = np.isfinite(third)
    assert np.flatnonzero(evaluated).tolist() == [2, 5, 7]
    np.testing.assert_allclose(third[evaluated], each[evaluated], rtol=1e-12)


def test_patience_ends_it_with_the_best_weights(problem):
    source, part = problem
    other = Rows({"X": part.inputs["X"][:20]}, np.random.default_rng(0).normal(size=20))  # noise
    config = TrainConfig(LBFGS(tolerance=0, improvement=0), epochs=500, early_stop=EarlyStopConfig(2))
    result = train(source, config, data=Data(part, other))
    validation = result.tensors["losses/validation"]
    best = int(np.argmin(validation))
    assert len(validation) == best + 3 < 500
    again = train(source, TrainConfig(LBFGS(tolerance=0, improvement=0), epochs=best + 1), data=Data(part, other))
    np.testing.assert_array_equal(result.tensors["parameter/coefficient"], again.tensors["parameter/coefficient"])


def test_where_training_begins_at_the_optimum_one_loss_says_so():
    X = np.linspace(-1, 1, 20).reshape(-1, 1)
    source = gradients(LinearRegression().fit(X, 3 * X), Data(Rows({"X": X}, 3 * X)), "l2")
    result = train(source, TrainConfig(LBFGS(), epochs=9), data=Data(Rows({"X": X}, 3 * X)))
    assert result.tensors["losses/train"] == pytest.approx([0], abs=1e-20)


def test_a_loss_that_is_not_finite_is_an_error(from_text):
    text = "g (float[N,1] X) => (float[N,1] y) <float[1] w = {1}> { e = Exp(X) h = Mul(e, w) y = Identity(h) }"
    source = derive(add_loss(from_text(text), AddLossConfig(LOSSES["l2"]())))
    with pytest.raises(ConvergenceError, match=r"loss (inf|nan) after 0"):
        train(source, TrainConfig(LBFGS()), data=Data(Rows({"X": np.full((4, 1), 80.0)}, np.zeros(4))))


def test_a_model_that_draws_is_refused():
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,1] y) <float[2,1] w = {1, 2}> {
      on = Constant<value = bool {1}>() half = Constant<value_float=0.5>()
      d = Dropout(X, half, on) y = MatMul(d, w) }"""
    source = derive(add_loss(convert(onnx.parser.parse_model(text)), AddLossConfig(LOSSES["l2"]())))
    with pytest.raises(TrainError, match="only depends on the parameters"):
        train(source, TrainConfig(LBFGS()), data=Data(Rows({"X": np.ones((4, 2))}, np.zeros(4))))


@pytest.mark.parametrize("part", [{"accumulate": 2}, {"average": 0.9}, {"clip": ClipConfig(1.0)}, {"warmup": 3}])
def test_parts_that_shape_steps_are_refused(part):
    with pytest.raises(ConfigError, match=next(iter(part))):
        TrainConfig(LBFGS(), **part)


@pytest.mark.parametrize("settings", [{"history": 0}, {"tolerance": -1}, {"improvement": np.inf}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        LBFGS(**settings)
