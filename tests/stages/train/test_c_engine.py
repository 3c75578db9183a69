"""runtime.engine=c trains as onnxruntime does: losses and weights agree up to rounding."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from stages.train.test_engine import MLP, gradients

from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="runtime.engine=c needs a C compiler")
C = RuntimeConfig(engine="c")


def both(text=MLP, kind="double", rtol=1e-9, terms=(), **options):
    """Train in both engines, compare losses and tensors, and return the result of the C engine."""
    artifact, data = gradients(text, kind, terms)
    settings = {"optimizer": OPTIMIZERS["sgd"](0.05), "epochs": 3, "batch_size": 8, **options}
    one, two = (train(artifact, TrainConfig(**settings), data=data, runtime=r) for r in (RuntimeConfig(), C))
    assert one.tensors.keys() == two.tensors.keys()
    for name, array in one.tensors.items():
        assert two.tensors[name].dtype == array.dtype
        np.testing.assert_allclose(two.tensors[name], array, rtol=rtol, atol=rtol, err_msg=name)
    return two


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "lbfgs"])
def test_every_optimizer_takes_the_same_steps(name):
    both(optimizer=OPTIMIZERS[name](lr=0.01), drop_last=True)
