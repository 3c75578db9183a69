from __future__ import annotations

import numpy as np
import onnx
import pytest

from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.epoch import build_epoch
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.step import build_step

TEXT = """g (float[N,3] X) => (float[N,1] y)
 <float[3,2] w = {0.5, -0.7, 1.1, 0.3, -0.4, 0.9}, float[2] b = {0.2, -0.1}, float[2,1] u = {0.8, -0.6}>
 { a = Gemm(X, w, b) h = Tanh(a) y = MatMul(h, u) }"""
STEPS, ROWS = 12, 4


def moved(name, parameter, gradient, velocity, rate, momentum=0.9):
    match name:
        case "sgd":
            return parameter - rate * gradient, velocity
        case "momentum":
            velocity = momentum * velocity - rate * gradient
            return parameter + velocity, velocity
        case "nesterov":
            velocity = momentum * velocity - rate * gradient
            return parameter + momentum * velocity - rate * gradient, velocity


@pytest.fixture
def gradient_model(from_text):
    def make(text=TEXT, dtype="float64", **config):
        loss_model = add_loss(from_text(text, dtype=dtype), AddLossConfig(LOSSES["l2"](), sample_weight=True))
        return derive(loss_model, DeriveConfig(**config))

    return make


def batches(dtype="float64"):
    rng = np.random.default_rng(8)
    return {
        "X": rng.normal(size=(STEPS, ROWS, 3)).astype(dtype),
        "label": rng.normal(size=(STEPS, ROWS, 1)).astype(dtype),
        "sample_weight": rng.uniform(0.5, 2, (STEPS, ROWS, 1)).astype(dtype),
        "rate": rng.uniform(0.01, 0.05, STEPS).astype(dtype),
    }


def start_of(step, parameters):
    return {name: parameters.get(name, np.zeros_like(parameters[name.split("/")[0]])) for name in step.carried}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_scan_is_the_gradient_model_run_step_by_step_in_numpy(gradient_model, parameters_of, name):
    artifact = gradient_model()
    step = build_step(artifact, OPTIMIZERS[name]())
    parameters = {p: parameters_of(artifact.model)[p] for p in artifact.facts.gradients}
    carried, scanned = start_of(step, parameters), batches()
    model, names = build_epoch(step)
    *end, losses = Session(model).run({names[k]: v for k, v in {**carried, **scanned}.items()})

    session, velocity = Session(artifact.model), {p: np.zeros_like(v) for p, v in parameters.items()}
    outputs, expected = ["loss", *artifact.facts.gradients.values()], []
    for t in range(STEPS):
        feeds = {k: v[t] for k, v in scanned.items() if k != "rate"}
        loss, *gradients = session.run({**feeds, **parameters}, outputs)
        expected.append(loss)
        for p, gradient in zip(artifact.facts.gradients, gradients, strict=True):
            parameters[p], velocity[p] = moved(name, parameters[p], gradient, velocity[p], scanned["rate"][t])
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    state = dict(zip(step.carried, end, strict=True))
    for p, value in parameters.items():
        np.testing.assert_allclose(state[p], value, rtol=1e-12)
        if f"{p}/velocity" in state:
            np.testing.assert_allclose(state[f"{p}/velocity"], velocity[p], rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_runs_of_half_the_steps_are_one_run_of_all(gradient_model, parameters_of, dtype):
    artifact = gradient_model(dtype=dtype)
    step = build_step(artifact, OPTIMIZERS["nesterov"]())
    parameters = {p: parameters_of(artifact.model)[p] for p in artifact.facts.gradients}
    model, names = build_epoch(step)
    session, scanned = Session(model), batches(dtype)

    def run(carried, part):
        *end, losses = session.run(
            {names[k]: v for k, v in {**carried, **{k: v[part] for k, v in scanned.items()}}.items()}
        )
        return dict(zip(step.carried, end, strict=True)), losses

    start = start_of(step, parameters)
    whole, losses = run(start, slice(None))
    half, first = run(start, slice(0, 5))
    rest, second = run(half, slice(5, None))
    np.testing.assert_array_equal(losses, np.concatenate([first, second]))
    for name in step.carried:
        np.testing.assert_array_equal(whole[name], rest[name])
        assert whole[name].dtype == dtype


def test_the_epoch_passes_the_full_check_and_is_the_same_every_time(gradient_model):
    artifact = gradient_model()
    first, second = (build_epoch(build_step(artifact, OPTIMIZERS["momentum"]()))[0] for _ in range(2))
    onnx.checker.check_model(first, full_check=True)
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


def test_building_leaves_the_gradient_model_as_it_was(gradient_model):
    artifact = gradient_model()
    before = artifact.digest()
    build_epoch(build_step(artifact, OPTIMIZERS["nesterov"]()))
    assert artifact.digest() == before


def test_frozen_parameters_are_not_carried(gradient_model):
    step = build_step(gradient_model(frozen=("u",)), OPTIMIZERS["nesterov"]())
    assert step.carried == ("w", "b", "w/velocity", "b/velocity")
    assert step.scanned == ("X", "label", "sample_weight", "rate")


def test_forward_outputs_are_no_part_of_the_step(gradient_model):
    assert len(build_step(gradient_model(), OPTIMIZERS["sgd"]()).graph.outputs) == 4
