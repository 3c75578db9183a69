from __future__ import annotations

import numpy as np
import pytest
from sklearn.neural_network._stochastic_optimizers import SGDOptimizer

from ortpipe.errors import ConfigError
from ortpipe.stages.train.schedules import SCHEDULES

STEPS = np.arange(1, 41)
MEMBERS = {
    "constant": (SCHEDULES["constant"](), lambda lr, t: lr),
    "inverse_scaling": (SCHEDULES["inverse_scaling"](power=0.4), lambda lr, t: lr / t**0.4),
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


@pytest.mark.parametrize("power", [-0.1, float("nan")])
def test_a_power_that_is_negative_is_refused(power):
    with pytest.raises(ConfigError, match=r"train\.schedule\.power"):
        SCHEDULES["inverse_scaling"](power=power)
