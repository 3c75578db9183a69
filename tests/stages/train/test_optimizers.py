from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from sklearn.neural_network._stochastic_optimizers import AdamOptimizer, SGDOptimizer
from stages.train.updates import PUBLISHED, STEPWISE, TRACES, noise, rates, slots_of, trace, update

from ortpipe.errors import ConfigError
from ortpipe.stages.train.optimizers import OPTIMIZERS

# Each member's settings stand beside its published implementation in updates.PUBLISHED:
# "adadelta", "adagrad", "adam", "adamw", "amsgrad", "momentum", "nadam", "nesterov", "rmsprop", "sgd": PyTorch 2.13;
# "lion": Optax 0.2.8; "lbfgs" is SciPy's own, held to scikit-learn's optimum in test_full_batch.py.
# Where they went, step by step, was written to traces.json.
RECORDED = json.loads(TRACES.read_text())


def made(name, **settings):
    return OPTIMIZERS[name](**{**PUBLISHED[name][0], **settings})


def at_rest(optimizer, shape, dtype=np.float64):
    return [np.zeros(shape, dtype)] * len(slots_of(optimizer))


def test_the_table_of_members_is_the_catalogue():
    assert set(PUBLISHED) == set(STEPWISE) == set(RECORDED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_step_is_that_of_the_published_implementation(name):
    optimizer = made(name)
    value, added = noise()
    call, state = update(optimizer, value.shape, np.float64), at_rest(optimizer, value.shape)
    steps = zip(rates(name), added, RECORDED[name]["places"], strict=True)
    for number, (rate, noisy, expected) in enumerate(steps, start=1):
        value, state = call(value, 2 * value + noisy, state, rate, number)
        tolerance = 1e-6 if name == "nadam" else 1e-10  # PyTorch keeps NAdam's Πμ in float32
        np.testing.assert_allclose(value, expected, rtol=tolerance, atol=1e-12)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_recorded_traces_are_what_the_implementation_gives(name):
    pytest.importorskip("optax" if name == "lion" else "torch", reason="its steps are recorded in traces.json")
    np.testing.assert_allclose(trace(name), RECORDED[name]["places"], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("shape", [(3, 2), (2,), ()])
@pytest.mark.parametrize(
    ("name", "published", "params"),
    [
        ("sgd", SGDOptimizer, {"momentum": 0.0, "nesterov": False}),
        ("momentum", SGDOptimizer, {"momentum": 0.8, "nesterov": False}),
        ("nesterov", SGDOptimizer, {"momentum": 0.8, "nesterov": True}),
        ("adam", AdamOptimizer, {"beta_1": 0.8, "beta_2": 0.95}),
    ],
)
def test_fifty_steps_are_scikit_learns_step_by_step(name, published, params, shape):
    rng = np.random.default_rng(0)
    ours, optimizer = np.asarray(rng.normal(size=shape)), made(name, **({"epsilon": 1e-12} if name == "adam" else {}))
    theirs = [np.array(ours)]
    oracle = published(theirs, learning_rate_init=0.05, **params, **({"epsilon": 1e-12} if name == "adam" else {}))
    call, state = update(optimizer, shape, np.float64), at_rest(optimizer, shape)
    for number in range(1, 51):
        gradient = np.asarray(2 * ours + rng.normal(size=shape))
        ours, state = call(ours, gradient, state, 0.05, number)
        oracle.update_params(theirs, [gradient])
        np.testing.assert_allclose(ours, theirs[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", PUBLISHED)
def test_shape_and_dtype_stay(name, dtype):
    optimizer, ones = made(name), np.ones((3, 2), dtype)
    moved, state = update(optimizer, (3, 2), dtype)(ones, ones, at_rest(optimizer, (3, 2), dtype), 0.1)
    assert all(v.shape == (3, 2) and v.dtype == dtype for v in (moved, *state))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_zero_gradient_moves_nothing_from_rest(name):
    optimizer = made(name, **({"weight_decay": 0.0} if name in ("adamw", "lion") else {}))
    start = np.array([1.5, -2.5])
    moved, state = update(optimizer, (2,), np.float64)(start, np.zeros(2), at_rest(optimizer, 2), 0.1)
    np.testing.assert_array_equal(moved, start)
    assert not np.any(state)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_rate_is_the_steps_own_not_the_base(name):
    optimizer = made(name)
    call, state = update(optimizer, (2,), np.float64), at_rest(optimizer, 2)
    once, thrice = (call(np.zeros(2), np.array([1.0, -0.5]), state, rate)[0] for rate in (0.2, 0.6))
    np.testing.assert_allclose(thrice, 3 * once, rtol=1e-9)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_quadratic_is_minimised(name):
    lr = {"adadelta": 30.0, "adagrad": 1.0, "amsgrad": 0.1, "lion": 0.01}.get(name, 0.05)
    optimizer = made(name, lr=lr, **({"weight_decay": 0.0} if name in ("adamw", "lion") else {}))
    call, value, state = update(optimizer, (2,), np.float64), np.array([3.0, -4.0]), at_rest(optimizer, 2)
    for number in range(1, 1501):
        value, state = call(value, 2 * value, state, lr * (1 - number / 1501), number)
    assert np.abs(value).max() < 1e-3


SETTINGS = [
    (name, key)
    for name, cls in OPTIMIZERS.items()
    if name in STEPWISE
    for key in (f.name for f in dataclasses.fields(cls))
]
REFUSED = {"lr": (0.0, -0.1, math.nan, math.inf), "epsilon": (-1e-8, math.nan), "weight_decay": (-0.1, math.inf)}


@pytest.mark.parametrize(("name", "key"), SETTINGS)
def test_a_setting_out_of_its_range_is_refused(name, key):
    for value in REFUSED.get(key, (-0.1, 1.0, math.nan)):
        with pytest.raises(ConfigError, match=rf"^{key} must"):
            OPTIMIZERS[name](**{key: value})
