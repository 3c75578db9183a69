"""The rates that are drawn are those that training takes."""

from __future__ import annotations

import numpy as np
import pytest
from sample import pairs
from sklearn.linear_model import LinearRegression

from ortpipe.data.rows import Data
from ortpipe.errors import ConfigError
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.continued import planned, watches
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.schedules import SCHEDULES
from ortpipe.stages.train.stage import train
from ortpipe.stages.train.training import rates, steps_per_epoch

UNIMPRESSED = {"reduce_on_plateau": {"threshold": 1e3, "patience": 1}, "adaptive": {"tolerance": 1e6, "patience": 2}}
WAYS = [{}, {"warmup": 9}, {"schedule_per": "epoch", "warmup": 2}, {"accumulate": 3}, {"validate_every": 2}]


@pytest.fixture(scope="module")
def source(diabetes):
    return derive(add_loss(convert(LinearRegression(), data=diabetes), AddLossConfig(LOSSES["l2"]())))


@pytest.mark.parametrize(("schedule", "ways"), pairs([*SCHEDULES], WAYS, 2))
def test_they_are_the_rates_of_a_training_in_which_nothing_improves(source, diabetes, schedule, ways):
    member = SCHEDULES[schedule](**UNIMPRESSED.get(schedule, {}))
    config = TrainConfig(OPTIMIZERS["sgd"](0.001), member, **{"epochs": 7, "batch_size": 8, **ways})
    for data in (diabetes, Data(diabetes.train)):
        steps, rates = planned(config, len(data.train), validated=data.validation is not None)
        taken = train(source, config, data=data).tensors["losses/rate"]
        assert len(taken) == 7 * steps_per_epoch(config, len(data.train))
        np.testing.assert_array_equal(steps, np.arange(1, len(taken) + 1))
        np.testing.assert_allclose(rates, taken, rtol=1e-6)


@pytest.mark.fast
def test_rates_rise_linearly_to_the_first_of_the_schedule():
    steps = np.arange(1, 7)
    constant = TrainConfig(OPTIMIZERS["sgd"](0.4), warmup=3)
    np.testing.assert_allclose(rates(constant, steps, 1, 6), [0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    halved = TrainConfig(OPTIMIZERS["sgd"](0.4), SCHEDULES["exponential"](0.5), warmup=3)
    np.testing.assert_allclose(rates(halved, steps, 1, 6), [0.1, 0.2, 0.3, 0.4, 0.2, 0.1])


def test_of_very_many_steps_some_are_picked_from_the_first_to_the_last():
    config = TrainConfig(OPTIMIZERS["sgd"](0.1), SCHEDULES["polynomial"](), epochs=10, batch_size=1)
    steps, rates = planned(config, 10**6, validated=False)
    assert (steps[0], steps[-1], len(steps)) == (1, 10**7, 100_000)
    np.testing.assert_allclose(rates, 0.1 * (1 - (steps - 1) / 10**7))


def test_two_schedules_depend_on_what_training_finds():
    assert {name for name, member in SCHEDULES.items() if watches(member())} == {"adaptive", "reduce_on_plateau"}


def test_an_optimizer_without_rates_is_refused():
    with pytest.raises(ConfigError, match="lbfgs"):
        planned(TrainConfig(OPTIMIZERS["lbfgs"]()), 10, validated=False)
