from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import SGDRegressor
from sklearn.neural_network._stochastic_optimizers import SGDOptimizer

from ortpipe.errors import ConfigError
from ortpipe.stages.train.schedules import SCHEDULES

STEPS = np.arange(1, 41)
MEMBERS = {
    "adaptive": (SCHEDULES["adaptive"](), lambda lr, t: lr),
    "constant": (SCHEDULES["constant"](), lambda lr, t: lr),
    "inverse_scaling": (SCHEDULES["inverse_scaling"](power=0.4), lambda lr, t: lr / t**0.4),
    "optimal": (SCHEDULES["optimal"](alpha=0.01), lambda lr, t: lr * 0.01**-0.75 / (0.01**-0.75 + t - 1)),
}


def test_the_table_of_members_is_the_catalogue():
    assert set(MEMBERS) == set(SCHEDULES)


@pytest.mark.parametrize("name", MEMBERS)
def test_every_step_has_the_rate_of_the_formula(name):
    schedule, formula = MEMBERS[name]
    rates = schedule(0.3, STEPS)
    assert rates.dtype == np.float64
    assert rates.shape == STEPS.shape
    np.testing.assert_allclose(rates, [formula(0.3, t) for t in STEPS], rtol=1e-15)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_rate_depends_on_its_step_alone(name):
    schedule, _ = MEMBERS[name]
    np.testing.assert_array_equal(schedule(0.3, STEPS)[10:], schedule(0.3, STEPS[10:]))


def test_inverse_scaling_is_scikit_learns_invscaling():
    """scikit-learn 1.9.1: SGDOptimizer.iteration_ends sets η / (t + 1)ᵖ after step t."""
    published = SGDOptimizer([np.zeros(1)], learning_rate_init=0.3, lr_schedule="invscaling", power_t=0.4)
    rates = []
    for t in STEPS:
        published.iteration_ends(t - 1)
        rates.append(published.learning_rate)
    np.testing.assert_allclose(MEMBERS["inverse_scaling"][0](0.3, STEPS), rates, rtol=1e-15)


def test_optimal_is_scikit_learns_from_its_own_first_rate():
    """scikit-learn 1.9.1, SGDRegressor: without a penalty, a row x = 1 of error e moves w by 2·ηₜ·e / 2."""
    alpha = 0.01
    published = SGDRegressor(learning_rate="optimal", alpha=alpha, penalty=None, fit_intercept=False, shuffle=False)
    rates, before = [], 0.0
    for t in range(1, 6):
        scale = 1e-3  # x small enough that the steps stay finite
        published.partial_fit([[scale]], [1.0])
        [after] = published.coef_
        rates.append((after - before) / ((1 - before * scale) * scale))
        before = after
        published.t_ = t + 1
    ours = SCHEDULES["optimal"](alpha)(alpha**-0.25, np.arange(1, 6))
    np.testing.assert_allclose(ours, rates, rtol=1e-9)


def test_adaptive_divides_the_rate_by_five_as_scikit_learns_does():
    """scikit-learn 1.9.1: SGDOptimizer.trigger_stopping, called after n_iter_no_change epochs without progress."""
    published = SGDOptimizer([np.zeros(1)], learning_rate_init=0.3, lr_schedule="adaptive")
    losses, rates, best, waited = [], [], np.inf, 0
    for loss in [3, 2, 1.9999, 2, 1, 1, 1, 1, 1, 0.5, 0.5, 0.6, 0.5]:
        waited = waited + 1 if loss > best - 1e-3 else 0
        best = min(best, loss)
        if waited >= 2:
            assert not published.trigger_stopping("", False)
            waited = 0
        losses.append(loss)
        rates.append(published.learning_rate)
    adaptive = SCHEDULES["adaptive"](patience=2)
    ours = [adaptive(0.3, np.array([7]), losses[:n])[0] for n in range(1, len(losses) + 1)]
    np.testing.assert_allclose(ours, rates, rtol=1e-12)
    assert len(set(rates)) == 5


def test_adaptive_leaves_a_rate_of_a_millionth():
    assert SCHEDULES["adaptive"](patience=1)(1.0, STEPS, [1.0] * 50)[0] == pytest.approx(5.0**-9)


@pytest.mark.parametrize("settings", [{"patience": 0}, {"tol": -1.0}, {"tol": float("nan")}])
def test_adaptive_settings_outside_their_range_are_refused(settings):
    with pytest.raises(ConfigError, match=r"train\.schedule\.patience"):
        SCHEDULES["adaptive"](**settings)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf")])
def test_an_alpha_that_is_not_positive_is_refused(alpha):
    with pytest.raises(ConfigError, match=r"train\.schedule\.alpha"):
        SCHEDULES["optimal"](alpha=alpha)


@pytest.mark.parametrize("power", [-0.1, float("nan")])
def test_a_power_that_is_negative_is_refused(power):
    with pytest.raises(ConfigError, match=r"train\.schedule\.power"):
        SCHEDULES["inverse_scaling"](power=power)
