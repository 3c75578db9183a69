from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from stages.train.updates import STEPWISE, scalars_of, slots_of, update

from ortpipe.graph.core.check import finish
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.epoch_graph import build_epoch
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.step import build_step

TEXT = """g (float[N,3] X) => (float[N,1] y)
 <float[3,2] w = {0.5, -0.7, 1.1, 0.3, -0.4, 0.9}, float[2] b = {0.2, -0.1}, float[2,1] u = {0.8, -0.6}>
 { a = Gemm(X, w, b) h = Tanh(a) y = MatMul(h, u) }"""
STEPS, ROWS = 12, 4


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
    }


def scalars(optimizer, dtype="float64"):
    rates, numbers = np.random.default_rng(9).uniform(0.01, 0.05, STEPS), np.arange(1, STEPS + 1)
    return rates, {name: value.astype(dtype) for name, value in scalars_of(optimizer, rates, numbers).items()}


def epoch_of(step):
    return finish(build_epoch(step))


@pytest.mark.parametrize("name", STEPWISE)
def test_the_scan_is_the_gradient_model_run_step_by_step(gradient_model, parameters_of, name):
    artifact, optimizer = gradient_model(), OPTIMIZERS[name]()
    step = build_step(artifact, TrainConfig(optimizer))
    parameters = {p: parameters_of(artifact.model)[p] for p in artifact.facts.gradients}
    carried, scanned, (rates, given) = step.pack(step.init(parameters)), batches(), scalars(optimizer)
    *end, losses = Session(epoch_of(step)).run({**carried, **scanned, **given})

    session = Session(artifact.model)
    calls = {p: update(optimizer, v.shape, v.dtype) for p, v in parameters.items()}
    state = {p: [np.zeros_like(v)] * len(slots_of(optimizer)) for p, v in parameters.items()}
    outputs, expected = ["loss", *artifact.facts.gradients.values()], []
    for t in range(STEPS):
        loss, *gradients = session.run({**{k: v[t] for k, v in scanned.items()}, **parameters}, outputs)
        expected.append(loss)
        for p, gradient in zip(artifact.facts.gradients, gradients, strict=True):
            parameters[p], state[p] = calls[p](parameters[p], gradient, state[p], rates[t], t + 1)
    np.testing.assert_allclose(losses, expected, rtol=1e-10)
    tensors = step.unpack(dict(zip(step.carried, end, strict=True)))
    for p, value in parameters.items():
        np.testing.assert_allclose(tensors[f"parameter/{p}"], value, rtol=1e-10)
        for slot, own in zip(slots_of(optimizer), state[p], strict=True):
            np.testing.assert_allclose(tensors[f"optimizer/{slot}/{p}"], own, rtol=1e-9, atol=1e-16)


@pytest.mark.parametrize("name", ["nesterov", "adam"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_runs_of_half_the_steps_are_one_run_of_all(gradient_model, parameters_of, dtype, name):
    artifact, optimizer = gradient_model(dtype=dtype), OPTIMIZERS[name]()
    step = build_step(artifact, TrainConfig(optimizer))
    parameters = {p: parameters_of(artifact.model)[p] for p in artifact.facts.gradients}
    session, scanned = Session(epoch_of(step)), {**batches(dtype), **scalars(optimizer, dtype)[1]}

    def run(carried, part):
        *end, losses = session.run({**carried, **{k: v[part] for k, v in scanned.items()}})
        return dict(zip(step.carried, end, strict=True)), losses

    start = step.pack(step.init(parameters))
    whole, losses = run(start, slice(None))
    half, first = run(start, slice(0, 5))
    rest, second = run(half, slice(5, None))
    np.testing.assert_array_equal(losses, np.concatenate([first, second]))
    for name in step.carried:
        np.testing.assert_array_equal(whole[name], rest[name])
        assert whole[name].dtype == dtype


def test_the_epoch_passes_the_full_check_and_is_the_same_every_time(gradient_model):
    artifact = gradient_model()
    first, second = (epoch_of(build_step(artifact, TrainConfig(OPTIMIZERS["momentum"]()))) for _ in range(2))
    onnx.checker.check_model(first, full_check=True)
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


def test_building_leaves_the_gradient_model_as_it_was(gradient_model):
    artifact = gradient_model()
    before = artifact.digest()
    build_epoch(build_step(artifact, TrainConfig(OPTIMIZERS["nesterov"]())))
    assert artifact.digest() == before


def test_frozen_parameters_are_not_carried(gradient_model):
    step = build_step(gradient_model(frozen=("u",)), TrainConfig(OPTIMIZERS["nesterov"]()))
    assert step.carried == ("w", "w/velocity", "b", "b/velocity")
    assert step.scanned == ("X", "label", "sample_weight", "rate")


def test_elementwise_optimizers_carry_one_vector(gradient_model):
    step = build_step(gradient_model(), TrainConfig(OPTIMIZERS["adam"]()))
    assert step.carried == ("parameters", "parameters/mean", "parameters/squares")
    assert step.scanned == ("X", "label", "sample_weight", "rate", "epsilon")
    arrays = {"w": np.arange(6.0).reshape(3, 2), "b": np.array([6.0, 7]), "u": np.array([[8.0], [9]])}
    tensors = {
        f"{folder}/{p}": array + number
        for number, folder in enumerate(("parameter", "optimizer/mean", "optimizer/squares"))
        for p, array in arrays.items()
    }
    packed = step.pack(tensors)
    np.testing.assert_array_equal(packed["parameters"], np.arange(10.0))
    back = step.unpack(packed)
    assert back.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(back[name], array)


def test_forward_outputs_are_no_part_of_the_step(gradient_model):
    assert len(build_step(gradient_model(), TrainConfig(OPTIMIZERS["sgd"]())).graph.outputs) == 4


def test_shapes_of_what_a_step_carries_are_known_behind_a_split_into_computed_sizes() -> None:
    """A Scan takes no state whose shape ONNX Runtime cannot infer anew."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[N, 2, T, 2] x) => (float[N, 2] y) <float[1, 2, 1, 2] w = {1, 2, 3, 4}>
    { s = Mul(x, w) c = Concat <axis = 2> (s, x) y = ReduceMean <axes = [1, 2], keepdims = 0> (c) }"""
    loss = add_loss(convert(onnx.parser.parse_model(text)), AddLossConfig(LOSSES["l2"]()))
    step = build_step(derive(loss, DeriveConfig(parameters=("w",))), TrainConfig())
    for value in (*step.graph.outputs, *(v for node in step.graph for v in node.outputs)):
        value.shape = None
    model = onnx.shape_inference.infer_shapes(ir.to_proto(ir.Model(step.graph, ir_version=9)))
    [carried] = [o for o in model.graph.output if o.name == "w/next"]
    assert [d.dim_value for d in carried.type.tensor_type.shape.dim] == [1, 2, 1, 2]
