from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.neural_network._stochastic_optimizers import SGDOptimizer

from ortpipe.compat import LearningRateSGD, LearningRateSGDNesterov
from ortpipe.errors import ConfigError, TrainError


def test_the_defaults_are_the_documented_ones():
    assert LearningRateSGD().get_params() == {
        "eta0": 0.01,
        "alpha": 0.0001,
        "power_t": 0.25,
        "learning_rate": "invscaling",
    }
    extra = {"momentum": 0.9, "nesterov": True}
    assert LearningRateSGDNesterov().get_params() == {**LearningRateSGD().get_params(), **extra}


def test_inverse_scaling_and_constant_are_scikit_learns():
    """scikit-learn 1.9.1: SGDOptimizer.iteration_ends sets η / (t + 1)ᵖ after pass t."""
    published = SGDOptimizer([np.zeros(1)], learning_rate_init=0.3, lr_schedule="invscaling", power_t=0.4)
    rates = []
    for t in range(1, 31):
        published.iteration_ends(t - 1)
        rates.append(published.learning_rate)
    np.testing.assert_allclose(list(LearningRateSGD(0.3, power_t=0.4).loop(30)), rates, rtol=1e-15)
    assert list(LearningRateSGD(0.3, learning_rate="constant").loop(5)) == [0.3] * 5


def test_optimal_starts_at_eta0_and_falls_as_one_over_t():
    rates = np.array(list(LearningRateSGD(learning_rate="optimal").loop()))
    assert rates[0] == 0.01
    assert (np.diff(rates) < 0).all()
    np.testing.assert_allclose(1 / rates, (1000 + np.arange(1000)) / (0.01 * 1000))


def test_adaptive_divides_by_five_after_five_passes_without_progress():
    rate = LearningRateSGD(0.5, learning_rate="adaptive").init_learning_rate()
    assert rate.value == 0.5
    assert rate.update_learning_rate(6, [1.0] * 5).value == 0.5
    assert rate.update_learning_rate(7, [1.0] * 6).value == pytest.approx(0.1)


@pytest.mark.parametrize("arguments", [{"learning_rate": "EXC"}, {"eta0": -1.0}, {"power_t": -1.0}])
def test_what_no_schedule_takes_is_refused(arguments):
    with pytest.raises(ValueError, match=r"learning_rate|eta0|power_t") as error:
        LearningRateSGD(**arguments)
    assert isinstance(error.value, ConfigError)


def test_a_rate_has_no_value_before_it_is_initialized():
    with pytest.raises(TrainError, match="init_learning_rate"):
        _ = LearningRateSGD().value


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("SGD", LearningRateSGD()),
        ("Nesterov", LearningRateSGDNesterov()),
        ("SGDNesterov", LearningRateSGDNesterov()),
        (1e-3, LearningRateSGD(1e-3)),
        (np.float32(0.5), LearningRateSGD(0.5)),
        (1, LearningRateSGD(1.0)),
        (LearningRateSGD(2.0), LearningRateSGD(2.0)),
    ],
)
def test_names_and_numbers_select_a_rate(given, expected):
    selected = LearningRateSGD.select(given)
    assert repr(selected) == repr(expected)
    assert selected is given or not isinstance(given, LearningRateSGD)


def test_rates_are_any_numbers_of_numpy():
    assert LearningRateSGD(np.float32(0.5)).get_params() == LearningRateSGD(0.5).get_params()
    with pytest.raises(ConfigError, match="eta0"):
        LearningRateSGD(np.float32(-0.5))


def test_an_unknown_name_is_refused():
    for wrong in ("Adam", True):
        with pytest.raises(ConfigError, match=str(wrong)):
            LearningRateSGD.select(wrong)


@pytest.mark.parametrize("rate", [LearningRateSGD(0.2), LearningRateSGDNesterov(0.2, momentum=0.5, nesterov=False)])
def test_copies_by_pickle_clone_and_repr_are_equal(rate):
    names = {"LearningRateSGD": LearningRateSGD, "LearningRateSGDNesterov": LearningRateSGDNesterov}
    for copy in (pickle.loads(pickle.dumps(rate)), clone(rate), eval(repr(rate), names)):
        assert type(copy) is type(rate)
        assert copy.get_params() == rate.get_params()
    assert "learning_rate='invscaling'" in repr(rate)


def test_parameters_are_set_and_checked():
    assert LearningRateSGD().set_params(eta0=3.0).eta0 == 3.0
    with pytest.raises(ConfigError, match="Did you mean 'eta0'"):
        LearningRateSGD().set_params(eta=3.0)
