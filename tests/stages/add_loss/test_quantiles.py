"""Several quantiles: loss, ascending predictions and metrics, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics
from sklearn.linear_model import QuantileRegressor

from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    ConvertConfig,
    Data,
    EvaluateConfig,
    Rows,
    TrainConfig,
    add_loss,
    convert,
    derive,
    evaluate,
    train,
)
from ortpipe.errors import ConfigError, EvaluateError, LossError
from ortpipe.metrics import METRICS
from ortpipe.stages.convert.sources import SOURCES
from ortpipe.stages.derive.config import DeriveConfig

LEVELS = (0.1, 0.5, 0.9)
QUANTILE = LOSSES["quantile"](LEVELS)
WIDE = "g (float[N,3] X) => (float[N,3] y) <float[3] w = {0, 0, 0}> { y = Add(X, w) }"
RNG = np.random.default_rng(5)
X = RNG.uniform(-1, 1, (300, 2))
Y = 100 + 20 * X[:, 0] + 10 * (1.5 + X[:, 1]) * RNG.normal(size=300)


@pytest.fixture(scope="module")
def evaluated():
    data = Data(Rows({"X": X}, Y), test=Rows({"X": X}, Y))
    source = SOURCES["mlp"](hidden=(), dropout=0.0, outputs=3)
    scored = add_loss(convert(None, ConvertConfig(source, dtype="float64"), data=data), AddLossConfig(QUANTILE))
    trained = train(derive(scored), TrainConfig(OPTIMIZERS["adam"](lr=0.03), epochs=150, average=0.98), data=data)
    return evaluate(trained, data=data)


def test_value_and_gradient_are_those_of_the_formula_in_float64(from_text, run, central_differences):
    scored = add_loss(from_text(WIDE, dtype="float64"), AddLossConfig(QUANTILE))
    x, y = RNG.normal(size=(7, 3)), RNG.normal(size=(7, 1))
    expected = sum(metrics.mean_pinball_loss(y, x[:, [k]], alpha=q) for k, q in enumerate(LEVELS))
    feeds = {"X": x, "label": y}
    assert run(scored.model, feeds)["loss"] == pytest.approx(expected, rel=1e-12)
    gradient = run(derive(scored, DeriveConfig(inputs=("X",))).model, feeds)["X_grad"]
    np.testing.assert_allclose(gradient, central_differences(scored.model, "loss", feeds, "X"), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_model_returns_the_quantiles_in_ascending_order(from_text, run, dtype):
    scored = add_loss(from_text(WIDE, dtype=dtype), AddLossConfig(QUANTILE))
    x = np.array([[3, 1, 2], [1, 2, 3]], dtype)
    assert run(scored.model, {"X": x, "label": np.zeros((2, 1), dtype)})["y"].tolist() == [[1, 2, 3], [1, 2, 3]]
    assert (scored.facts.link, scored.facts.levels, scored.facts.outputs) == ("quantiles", LEVELS, ("y",))


def test_linear_quantiles_are_those_of_scikit_learn(evaluated):
    losses = {name: row["trained"] for name, row in evaluated.facts.metrics.items()}
    assert set(losses) == {"pinball_loss", "pinball_loss_0.1", "pinball_loss_0.5", "pinball_loss_0.9", "coverage"}
    for q in LEVELS:
        best = QuantileRegressor(quantile=q, alpha=0).fit(X, Y)
        expected = metrics.mean_pinball_loss(Y, best.predict(X), alpha=q)
        assert losses[f"pinball_loss_{q}"] == pytest.approx(expected, rel=5e-3)
    assert losses["pinball_loss"] == pytest.approx(np.mean([losses[f"pinball_loss_{q}"] for q in LEVELS]))
    assert losses["coverage"] == pytest.approx(0.8, abs=0.02)


def test_the_baseline_is_the_quantiles_of_the_training_labels(evaluated):
    for q in LEVELS:
        constant = np.full(300, np.quantile(Y, q, method="inverted_cdf"))
        expected = metrics.mean_pinball_loss(Y, constant, alpha=q)
        assert evaluated.facts.metrics[f"pinball_loss_{q}"]["baseline"] == pytest.approx(expected)


@pytest.mark.parametrize("weight", [None, np.linspace(0.1, 2, 300)], ids=["unweighted", "weighted"])
def test_metrics_of_quantiles_are_scikit_learns(weight):
    values, levels = np.sort(Y[:, None] + RNG.normal(0, 20, (300, 3))), np.broadcast_to(LEVELS, (300, 3))
    losses = [metrics.mean_pinball_loss(Y, values[:, k], alpha=q, sample_weight=weight) for k, q in enumerate(LEVELS)]
    for name, expected in (("pinball_loss", np.mean(losses)), ("pinball_loss_0.9", losses[2])):
        assert METRICS[name](Y[:, None], values, levels, weight) == pytest.approx(expected, rel=1e-12)
    inside = metrics.accuracy_score((values[:, 0] <= Y) & (values[:, 2] >= Y), np.ones(300), sample_weight=weight)
    assert METRICS["coverage"](Y[:, None], values, levels, weight) == pytest.approx(inside)


def test_settings_models_and_metrics_that_do_not_fit_are_rejected(from_text, evaluated):
    for quantiles in ((), (0.5, 0.5), (0.9, 0.1), (0.0, 0.5)):
        with pytest.raises(ConfigError, match="quantiles"):
            LOSSES["quantile"](quantiles)
    with pytest.raises(LossError, match=r"needs a prediction \[N, 2\](.|\n)*\[N, 3\]"):
        add_loss(from_text(WIDE), AddLossConfig(LOSSES["quantile"]((0.1, 0.9))))
    data = Data(Rows({"X": X}, Y), test=Rows({"X": X}, Y))
    for name, message in (("r2", "must fit the model's task"), ("pinball_loss_0.3", "one that the model predicts")):
        with pytest.raises(EvaluateError, match=message):
            evaluate(evaluated, EvaluateConfig((name,)), data=data)
