from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network._stochastic_optimizers import SGDOptimizer
from stages.train.rates import LOSSES, LR, PUBLISHED, RATES, STEPS, published

from ortpipe.errors import ConfigError
from ortpipe.stages.train.schedules import SCHEDULES

# PyTorch 2.13's rates, written to rates.json: "constant", "step", "exponential", "polynomial", "cosine", "one_cycle",
# "reduce_on_plateau"; scikit-learn 1.9's, below: "inverse_scaling", "optimal", "adaptive".
RECORDED = json.loads(RATES.read_text())
NUMBERS = np.arange(1, STEPS + 1)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_step_has_the_published_rate(name):
    member, settings, _, options = PUBLISHED[name]
    schedule, watched = SCHEDULES[member](**settings), LOSSES * (-1 if options.get("mode") == "max" else 1)
    rates = schedule(LR, NUMBERS, STEPS) * [schedule.factor(watched[:epoch]) for epoch in range(STEPS)]
    np.testing.assert_allclose(rates, RECORDED[name], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_recorded_rates_are_what_the_implementation_gives(name):
    pytest.importorskip("torch", reason="its rates are recorded in rates.json")
    np.testing.assert_allclose(published(name), RECORDED[name], rtol=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_rate_depends_on_its_step_alone(name):
    schedule = SCHEDULES[name]()
    rates = schedule(LR, NUMBERS, STEPS)
    assert rates.dtype == np.float64
    np.testing.assert_array_equal(rates[10:], schedule(LR, NUMBERS[10:], STEPS))
    assert (rates >= 0).all()


def test_inverse_scaling_is_scikit_learns_invscaling():
    """scikit-learn 1.9.1: SGDOptimizer.iteration_ends sets η / (t + 1)ᵖ after step t."""
    oracle = SGDOptimizer([np.zeros(1)], learning_rate_init=LR, lr_schedule="invscaling", power_t=0.4)
    rates = []
    for t in NUMBERS:
        oracle.iteration_ends(t - 1)
        rates.append(oracle.learning_rate)
    np.testing.assert_allclose(SCHEDULES["inverse_scaling"](0.4)(LR, NUMBERS, STEPS), rates, rtol=1e-15)


def test_optimal_is_scikit_learns():
    """scikit-learn 1.9.1: SGDClassifier with log loss and no penalty moves a weight by its own rate every row."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(STEPS, 1)), rng.integers(0, 2, STEPS)
    y[:2] = 0, 1
    oracle = SGDClassifier(
        loss="log_loss", penalty=None, alpha=0.01, learning_rate="optimal", fit_intercept=False, shuffle=False
    )
    weight = 0.0
    for rate, row, label in zip(SCHEDULES["optimal"](0.01)(0.01**-0.25, NUMBERS, STEPS), x, y, strict=True):
        oracle.partial_fit(row.reshape(1, 1), [label], classes=[0, 1])
        weight -= rate * (1 / (1 + np.exp(-weight * row[0])) - label) * row[0]
        np.testing.assert_allclose(oracle.coef_[0, 0], weight, rtol=1e-9)


def test_adaptive_is_scikit_learns():
    """scikit-learn 1.9.1: an epoch without improvement counts; MLP calls trigger_stopping after more than n of them."""
    oracle = SGDOptimizer([np.zeros(1)], learning_rate_init=LR, lr_schedule="adaptive")
    schedule, best, missed, rates = SCHEDULES["adaptive"](tolerance=0.01, patience=3), np.inf, 0, []
    for loss in LOSSES:
        rates.append(oracle.learning_rate)
        missed = missed + 1 if loss > best - 0.01 else 0
        best = min(best, loss)
        if missed > 2:
            oracle.trigger_stopping("", False)
            missed = 0
    ours = [schedule(LR, NUMBERS, STEPS)[0] * schedule.factor(LOSSES[:epoch]) for epoch in range(STEPS)]
    before = np.array(rates) > 1e-6  # where scikit-learn ends training
    assert len(set(np.array(rates)[before])) > 3
    np.testing.assert_allclose(np.array(ours)[before], np.array(rates)[before], rtol=1e-9)


SETTINGS = [(name, f.name) for name, cls in SCHEDULES.items() for f in dataclasses.fields(cls)]


@pytest.mark.parametrize(("name", "key"), SETTINGS)
def test_a_setting_out_of_its_range_is_refused(name, key):
    whole = not isinstance(getattr(SCHEDULES[name](), key), float)
    for value in (-1,) if whole else (-0.1, float("nan")):
        with pytest.raises(ConfigError, match=rf"^{key} must"):
            SCHEDULES[name](**{key: value})
    for value in (-0.1, float("nan")) if whole else ():
        with pytest.raises(ConfigError, match=rf"^{key} must be a whole number"):
            SCHEDULES[name](**{key: value})
