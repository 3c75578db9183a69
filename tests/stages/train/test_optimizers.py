from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest
from sklearn.neural_network._stochastic_optimizers import SGDOptimizer

from ortpipe.errors import ConfigError
from ortpipe.graph.builder import Builder
from ortpipe.graph.check import finish
from ortpipe.runtime.session import Session
from ortpipe.stages.train.optimizers import OPTIMIZERS

# Agreement with scikit-learn 1.9.1, sklearn/neural_network/_stochastic_optimizers.py: SGDOptimizer.
MEMBERS = {
    "sgd": (OPTIMIZERS["sgd"](lr=0.05), {"momentum": 0.0, "nesterov": False}),
    "momentum": (OPTIMIZERS["momentum"](lr=0.05, momentum=0.8), {"momentum": 0.8, "nesterov": False}),
    "nesterov": (OPTIMIZERS["nesterov"](lr=0.05, momentum=0.8), {"momentum": 0.8, "nesterov": True}),
}
SHAPES = [(3, 2), (2,), ()]


def update(optimizer, shape, dtype):
    """Return the update as a function (parameter, gradient, state, rate) → (parameter, state)."""
    kind = ir.DataType.from_numpy(np.dtype(dtype))
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 21}, name="update")
    op = Builder(graph, "update")
    parameter, gradient = op.input("parameter", kind, shape), op.input("gradient", kind, shape)
    state = [op.input(slot, kind, shape) for slot in optimizer.slots]
    rate = op.input("rate", kind, [])
    scaled = op.Neg(op.Mul(gradient, rate)) if optimizer.scaled else gradient  # as the step's backward pass does
    new, new_state = optimizer(op, parameter, scaled, state, rate)
    graph.outputs.extend([new, *new_state])
    for output in graph.outputs:
        output.type, output.shape = ir.TensorType(kind), ir.Shape(shape)
    session = Session(finish(ir.Model(graph, ir_version=10)))

    def call(parameter, gradient, state, rate):
        feeds = {"parameter": parameter, "gradient": gradient, "rate": np.asarray(rate, dtype)}
        moved, *slots = session.run({**feeds, **dict(zip(optimizer.slots, state, strict=True))})
        return moved, slots

    return call


def test_the_table_of_members_is_the_catalogue():
    assert set(MEMBERS) == set(OPTIMIZERS)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MEMBERS)
def test_fifty_steps_are_scikit_learns_step_by_step(name, shape):
    optimizer, params = MEMBERS[name]
    rng = np.random.default_rng(0)
    ours = np.asarray(rng.normal(size=shape))
    theirs = [np.array(ours)]
    published = SGDOptimizer(theirs, learning_rate_init=0.05, **params)
    call, state = update(optimizer, shape, np.float64), [np.zeros(shape)] * len(optimizer.slots)
    for _ in range(50):
        gradient = np.asarray(2 * ours + rng.normal(size=shape))
        ours, state = call(ours, gradient, state, 0.05)
        published.update_params(theirs, [gradient])
        np.testing.assert_allclose(ours, theirs[0], rtol=1e-12, atol=1e-15)
    for slot in state:
        np.testing.assert_allclose(slot, published.velocities[0], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", MEMBERS)
def test_shape_and_dtype_stay(name, dtype):
    optimizer, _ = MEMBERS[name]
    zeros = [np.zeros((3, 2), dtype)] * len(optimizer.slots)
    moved, state = update(optimizer, (3, 2), dtype)(np.ones((3, 2), dtype), np.ones((3, 2), dtype), zeros, 0.1)
    assert all(v.shape == (3, 2) and v.dtype == dtype for v in (moved, *state))


@pytest.mark.parametrize("name", MEMBERS)
def test_a_zero_gradient_moves_nothing_from_rest(name):
    optimizer, _ = MEMBERS[name]
    start, zeros = np.array([1.5, -2.5]), [np.zeros(2)] * len(optimizer.slots)
    moved, state = update(optimizer, (2,), np.float64)(start, np.zeros(2), zeros, 0.1)
    np.testing.assert_array_equal(moved, start)
    assert not np.any(state)


@pytest.mark.parametrize("name", MEMBERS)
def test_the_rate_is_the_steps_own_not_the_base(name):
    optimizer, params = MEMBERS[name]
    zeros = [np.zeros(2)] * len(optimizer.slots)
    moved, _ = update(optimizer, (2,), np.float64)(np.zeros(2), np.ones(2), zeros, 7.0)
    np.testing.assert_allclose(moved, -7.0 * (1 + params["momentum"] * params["nesterov"]))


@pytest.mark.parametrize("name", MEMBERS)
def test_a_quadratic_is_minimised(name):
    optimizer, _ = MEMBERS[name]
    call, value, state = (
        update(optimizer, (2,), np.float64),
        np.array([3.0, -4.0]),
        [np.zeros(2)] * len(optimizer.slots),
    )
    for _ in range(300):
        value, state = call(value, 2 * value, state, 0.05)
    assert np.abs(value).max() < 1e-8


@pytest.mark.parametrize("lr", [0.0, -0.1, math.nan, math.inf])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rate_that_is_not_positive_and_finite_is_refused(name, lr):
    with pytest.raises(ConfigError, match="learning rate"):
        OPTIMIZERS[name](lr=lr)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, math.nan])
@pytest.mark.parametrize("name", ["momentum", "nesterov"])
def test_a_momentum_outside_zero_to_one_is_refused(name, momentum):
    with pytest.raises(ConfigError, match="momentum"):
        OPTIMIZERS[name](momentum=momentum)
