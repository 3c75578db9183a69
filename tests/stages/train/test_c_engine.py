"""runtime.engine=c trains as onnxruntime does: losses and weights agree up to rounding."""

from __future__ import annotations

import importlib.util

import numpy as np
import onnx
import pytest
from runtime.c.epochs import needs_engine
from sample import ALL, few_of_each
from stages.derive.test_derive import CASES as MODELS_AND_LOSSES
from stages.derive.test_derive import MODELS
from stages.train.parts import CASES
from stages.train.test_engine import ATTENTION, CNN, DROPPED, MLP, data_of, gradients, model_of

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConfigError, ConvergenceError, EngineError
from ortpipe.parallel.config import ParallelConfig
from ortpipe.parallel.pool import check_engine
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.providers import check_provider
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import CheckpointConfig, ClipConfig, EarlyStopConfig, TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.schedules import SCHEDULES
from ortpipe.stages.train.stage import train
from ortpipe.stages.train.training import Checkpoint

pytestmark = needs_engine
C = RuntimeConfig(engine="c")
EPOCHS = 20
ROUNDING = {"float64": 1e-6, "float32": 1e-4}  # of losses, relative
PARTS = ("clip.norm", "weight_decay by name", "average", "all of them")


def both(text=MLP, kind="double", rtol=1e-9, terms=(), **options):
    """Train in both engines, compare losses and tensors, and return the result of the C engine."""
    artifact, data = gradients(text, kind, terms)
    settings = {"optimizer": OPTIMIZERS["sgd"](0.05), "epochs": EPOCHS, "batch_size": 8, **options}
    one, two = (train(artifact, TrainConfig(**settings), data=data, runtime=r) for r in (RuntimeConfig(), C))
    assert one.tensors.keys() == two.tensors.keys()
    for name, array in one.tensors.items():
        assert two.tensors[name].dtype == array.dtype
        np.testing.assert_allclose(two.tensors[name], array, rtol=rtol, atol=rtol, err_msg=name)
    return two


def rows_of(artifact, dtype, count=20):
    """Return rows for an artifact's task."""
    rng, task = np.random.default_rng(3), artifact.facts.task
    X = rng.normal(size=(count, 3)).astype(dtype)
    if task == "regression":
        return Data(Rows({"X": X}, np.abs(rng.normal(size=(count, 1))).astype(dtype)))
    if task == "multilabel":
        return Data(Rows({"X": X}, rng.integers(0, 2, (count, 3)).astype(dtype)))
    return Data(Rows({"X": X}, np.arange(count) % len(artifact.facts.classes)))


SUPPORTED = [
    (loss, (model, loss))
    for model, loss in MODELS_AND_LOSSES
    if model != "linear of two" and (loss, model) != ("hinge", "multiclass network")  # rows of one target; TopK
]


@pytest.mark.parametrize(("model", "loss"), [c for _, c in SUPPORTED] if ALL else few_of_each(SUPPORTED, 1))
@pytest.mark.parametrize("dtype", ["float64", "float32"] if ALL else ["float32"])
def test_every_loss_falls_as_in_onnxruntime(from_text, model, loss, dtype):
    text, task, logits, classes = MODELS[model]
    labels = tuple(range(classes)) if classes else None
    forward = from_text(text, dtype=dtype, task=task, logits=logits, classes=labels)
    artifact, data = derive(add_loss(forward, AddLossConfig(LOSSES[loss]()))), rows_of(forward, dtype)
    config = TrainConfig(OPTIMIZERS["sgd"](0.02), epochs=EPOCHS, batch_size=10)
    one, two = (train(artifact, config, data=data, runtime=r).tensors["losses/step"] for r in (None, C))
    np.testing.assert_allclose(two, one, rtol=ROUNDING[dtype], atol=ROUNDING[dtype] / 100)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "lbfgs"])
def test_every_optimizer_takes_the_same_steps(name):
    both(optimizer=OPTIMIZERS[name](lr=0.01), drop_last=True)  # compiled for one size


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_has_the_same_steps(name):
    both(schedule=SCHEDULES[name](), drop_last=True)  # compiled once


@pytest.mark.parametrize("case", [*CASES] if ALL else PARTS)
def test_parts_around_an_optimizer_are_the_same(case):
    name, settings, parts, *_ = CASES[case]
    parts = {**parts, "clip": ClipConfig(**parts["clip"])} if "clip" in parts else parts
    both(optimizer=OPTIMIZERS[name](**settings), drop_last=True, **parts)


def test_accumulated_batches_and_those_left_over_are_updates():
    both(accumulate=5)


def test_attention_trains_alike():
    both(ATTENTION, "float", 1e-4, optimizer=OPTIMIZERS["momentum"](0.002), drop_last=True)


def test_penalties_schedules_and_early_stopping_are_the_same():
    result = both(
        rtol=1e-8,
        terms={"w": {"l1": 0.01, "l2": 0.02}, "u": {"group": 0.01}},
        schedule=SCHEDULES["cosine"](),
        warmup=3,
        early_stop=EarlyStopConfig(patience=2, min_delta=0.05),
        epochs=12,
        drop_last=True,
    )
    assert len(result.tensors["losses/train"]) < 12


def test_fake_quantization_rounds_alike(tmp_path):
    data = data_of(MLP)
    onnx.save(model_of(MLP), tmp_path / "mlp.onnx")
    config = ConvertConfig(OnnxFile(str(tmp_path / "mlp.onnx")), quantize="qdq")
    artifact = derive(add_loss(convert(None, config, data=data), AddLossConfig(LOSSES["l2"](), "mean")))
    training = TrainConfig(OPTIMIZERS["sgd"](0.05), epochs=EPOCHS, batch_size=8, drop_last=True)
    one, two = (train(artifact, training, data=data, runtime=r).tensors["losses/step"] for r in (None, C))
    np.testing.assert_allclose(two, one, rtol=ROUNDING["float32"])


def test_workers_train_in_another_engine():
    with pytest.raises(ConfigError, match=r"runtime\.engine=c with train/parallel=processes[\s\S]*=onnxruntime\."):
        check_engine(ParallelConfig(transport="processes"), "c")


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="dropout is compared with runtime.engine=xla")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_dropout_draws_the_numbers_of_the_xla_engine(accumulate):
    artifact, data = gradients(DROPPED)
    config = TrainConfig(OPTIMIZERS["adam"](0.01), epochs=3, batch_size=8, accumulate=accumulate, drop_last=True)
    one, two = (train(artifact, config, data=data, runtime=RuntimeConfig(engine=name)) for name in ("xla", "c"))
    np.testing.assert_allclose(two.tensors["losses/step"], one.tensors["losses/step"], rtol=1e-4)


def test_a_repeated_continued_or_streamed_training_gives_the_same_bytes(monkeypatch):
    artifact, data = gradients(DROPPED)
    config = TrainConfig(
        OPTIMIZERS["adam"](0.01), epochs=4, batch_size=8, drop_last=True, checkpoint=CheckpointConfig(epochs=2)
    )
    events = []
    whole = train(artifact, config, data=data, runtime=C, report=events.append)
    start = next(event for event in events if isinstance(event, Checkpoint))
    rest = train(artifact, config, data=data, runtime=C, start=start)
    again = train(artifact, config, data=data, runtime=C)
    monkeypatch.setattr("ortpipe.data.batches.CHUNK", 2 * 8 * 5 * 4)  # two batches
    pieces = train(artifact, config, data=data, runtime=C)
    for other in (rest, again, pieces):
        assert {n: a.tobytes() for n, a in other.tensors.items()} == {n: a.tobytes() for n, a in whole.tensors.items()}


def test_a_diverging_training_names_its_gradients():
    artifact, data = gradients(MLP)
    with pytest.raises(ConvergenceError, match=r"largest gradient norms [wub] "):
        train(artifact, TrainConfig(OPTIMIZERS["sgd"](1e6), epochs=9, batch_size=8), data=data, runtime=C)


def test_operators_that_are_not_compiled_are_named_before_any_step():
    artifact, data = gradients(CNN)
    events = []
    with pytest.raises(EngineError, match=r"unsupported operators: .*Conv, .*MaxPool[\s\S]*engine=onnxruntime"):
        train(artifact, TrainConfig(epochs=1), data=data, runtime=C, report=events.append)
    assert events == []


@pytest.mark.parametrize("settings", [{"threads": 2}, {"provider": "cuda"}])
def test_other_devices_and_more_threads_are_rejected_before_any_work(settings):
    with pytest.raises(EngineError, match=r"one thread of the CPU[\s\S]*threads=1"):
        check_provider(RuntimeConfig(engine="c", **settings))
