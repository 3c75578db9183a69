"""Training counts subnormal numbers as 0; NumPy in the same thread keeps them."""

import platform

import numpy as np
import onnx
import pytest
from sklearn.linear_model import LinearRegression

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvergenceError
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.runtime.subnormal import MODES, flushed
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

pytestmark = pytest.mark.skipif((platform.system(), platform.machine()) not in MODES, reason="nothing is flushed here")
SMALL = np.full(3, 1.2e-38, np.float32)
HALF = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["": 21]> g (float[N] x, float h) => (float[N] y) { y = Mul(x, h) }'
)


def numpy_has_subnormal_numbers():
    return bool((np.float32(0.5) * SMALL > 0).all())


@pytest.mark.parametrize("threads", [1, 2])
def test_a_session_flushes_and_its_caller_does_not(threads):
    for flushes in (True, False, True):
        [y] = Session(HALF, RuntimeConfig(threads), flushes=flushes).run({"x": SMALL, "h": np.array(0.5, np.float32)})
        assert (y == 0).all() == flushes
        assert numpy_has_subnormal_numbers()


def test_an_error_in_the_block_leaves_the_thread_as_it_was():
    with pytest.raises(ZeroDivisionError), flushed():
        _ = 1 // numpy_has_subnormal_numbers()
    assert numpy_has_subnormal_numbers()


@pytest.fixture
def model():
    """Return a gradient model, and rows of which only the first moves the second coefficient."""
    x = np.random.default_rng(0).normal(size=(135, 2)).astype(np.float32)
    x[1:, 1] = 0
    y = x[:, 0] ** 2
    data = Data(Rows({"X": x}, y))
    artifact = convert(LinearRegression().fit(x[:, :1] @ np.ones((1, 2)), y), data=data)
    return derive(add_loss(artifact, AddLossConfig(LOSSES["l2"]()))), data


def test_running_means_end_at_zero(model):
    artifact, data = model
    config = TrainConfig(OPTIMIZERS["adam"](beta1=0.5), epochs=1, batch_size=1, shuffle=False)
    mean = train(artifact, config, data=data).tensors["optimizer/mean/coefficient"]
    assert mean[0] != 0
    assert mean[1] == 0  # about 2⁻¹³⁵ of its first gradient without flushes
    assert numpy_has_subnormal_numbers()


def test_training_that_diverges_leaves_the_thread_as_it_was(model):
    artifact, data = model
    with pytest.raises(ConvergenceError):
        train(artifact, TrainConfig(OPTIMIZERS["sgd"](lr=1e30), epochs=9, init="random"), data=data)
    assert numpy_has_subnormal_numbers()
