"""The kernel of Adam computes what the standard operators do, wherever it takes their place."""

from __future__ import annotations

import numpy as np
import pytest
from stages.train.test_parts import config, data, gradients

from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.library import about
from ortpipe.stages.train import load
from ortpipe.stages.train.config import ClipConfig, TrainConfig
from ortpipe.stages.train.kernels import has_adam_kernel
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train
from ortpipe.stages.train.step import build_step

pytestmark = pytest.mark.skipif(not about().builds_gradients, reason="only the training build has the kernel")
PLAIN = {"adam": {"epsilon": 1e-4}, "adamw": {"weight_decay": 0.1}}


def trained(monkeypatch, kernels, *args, **kwargs):
    monkeypatch.setattr(load, "has_adam_kernel", lambda runtime: kernels)
    return train(*args, data=data(np.float32), **kwargs).tensors


@pytest.mark.parametrize("optimizer", PLAIN)
def test_the_kernel_computes_what_the_operators_do(monkeypatch, optimizer):
    """Several parameters, and a partial batch: the kernel may write over its inputs, and none may see that."""
    model, made = gradients("float"), config(optimizer, PLAIN[optimizer], epochs=6)
    assert len(model.facts.gradients) > 1
    fast, plain = (trained(monkeypatch, kernels, model, made) for kernels in (True, False))
    assert fast.keys() == plain.keys()
    for name in plain:
        np.testing.assert_allclose(fast[name], plain[name], rtol=2e-5, atol=1e-7, err_msg=name)


def test_one_continues_what_the_other_began(monkeypatch):
    model, made = gradients("float"), config("adam", epochs=4)
    whole = trained(monkeypatch, True, model, made)
    begun = trained(monkeypatch, False, model, config("adam", epochs=2))
    continued = trained(monkeypatch, True, model, made, start=begun)
    np.testing.assert_allclose(continued["parameter/w"], whole["parameter/w"], rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("float", {}, True),
        ("double", {}, False),
        ("float16", {}, False),
        ("float", {"clip": ClipConfig(norm=1.0)}, False),
        ("float", {"weight_decay": 0.1}, False),
        ("float", {"average": 0.9}, False),
    ],
)
def test_it_stands_only_for_the_whole_of_the_chain(kind, settings, expected):
    step = build_step(gradients(kind), TrainConfig(OPTIMIZERS["adam"](), **settings), kernels=True)
    assert ("AdamOptimizer" in {node.op_type for node in step.graph}) is expected


def test_others_and_steps_that_leave_here_are_of_standard_operators():
    steps = [build_step(gradients("float"), TrainConfig(OPTIMIZERS["adam"]()))]
    steps += [build_step(gradients("float"), TrainConfig(OPTIMIZERS[n]()), kernels=True) for n in ("amsgrad", "sgd")]
    assert not {node.domain for step in steps for node in step.graph} - {""}


def test_it_is_there_on_the_cpu_only():
    assert has_adam_kernel(None)
    assert not has_adam_kernel(RuntimeConfig(provider="cuda"))


def test_the_same_training_gives_the_same_bytes():
    first, second = (train(gradients("float"), config("adam", epochs=3), data=data(np.float32)) for _ in range(2))
    assert first.digest() == second.digest()
