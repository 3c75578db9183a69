"""runtime.engine=xla trains as onnxruntime does: the same losses and weights, within what rounding allows."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import subprocess
import sys

import numpy as np
import onnx
import pytest
from command import ROOT
from sample import ALL
from stages.train.parts import CASES

from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvergenceError, ModelError
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.stage import penalty
from ortpipe.stages.train.config import CheckpointConfig, ClipConfig, EarlyStopConfig, TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.remark import Remark
from ortpipe.stages.train.schedules import SCHEDULES
from ortpipe.stages.train.stage import train
from ortpipe.stages.train.training import Checkpoint

needs_jax = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="runtime.engine=xla needs jax: pip install 'ortpipe[xla]'"
)
# ORTPIPE_TEST_PROVIDER=cuda: on the GPU that JAX finds
XLA = RuntimeConfig(engine="xla", provider=os.environ.get("ORTPIPE_TEST_PROVIDER", "cpu"))
ROWS = 52  # six batches of eight and one of four
MLP = """<ir_version: 10, opset_import: ["" : 21]>
 g (TYPE[N,3] X) => (TYPE[N,2] y) <TYPE[3,6] w = {W}, TYPE[6] b = {0.1, 0, 0.2, -0.1, 0.3, 0}, TYPE[6,2] u = {U}>
 { h = Gemm(X, w, b) a = Relu(h) y = MatMul(a, u) }"""
CNN = """<ir_version: 10, opset_import: ["" : 21]>
 g (TYPE[N,1,6,6] X) => (TYPE[N,2] y)
 <TYPE[3,1,3,3] w = {W}, TYPE[3] b = {0.1, 0, 0.2}, TYPE[3,3,3,3] v = {V}, TYPE[27,2] u = {U},
  TYPE[3] scale = {1, 0.5, 2}, TYPE[3] shift = {0, 0.1, 0}, TYPE[3] mean = {0, 0, 0}, TYPE[3] var = {1, 1, 1}>
 { c = Conv<pads = [1, 1, 1, 1]>(X, w, b) n, m, s = BatchNormalization<training_mode = 1>(c, scale, shift, mean, var)
   a = Relu(n) p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a) d = Conv<auto_pad = "SAME_UPPER">(p, v)
   t = Tanh(d) q = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [1, 1]>(t) f = Flatten(q)
   y = MatMul(f, u) }"""
DROPPED = """<ir_version: 10, opset_import: ["" : 21]>
 g (TYPE[N,3] X) => (TYPE[N,2] y) <TYPE[3,6] w = {W}, TYPE[6,2] u = {U}>
 { third = Constant<value_float = 0.3>() on = Constant<value = bool {1}>()
   h = MatMul(X, w) d = Dropout(h, third, on) y = MatMul(d, u) }"""
ATTENTION = """<ir_version: 10, opset_import: ["" : 21]>
 g (TYPE[N,4,3] X) => (TYPE[N,2] y)
 <TYPE[3,6] w = {W}, TYPE[3,6] k = {W}, TYPE[3,6] v = {W}, TYPE[6,2] u = {U}, TYPE[6] scale = {1, 1, 1, 2, 1, 1}>
 { a = MatMul(X, w) b = MatMul(X, k) c = MatMul(X, v) t = Transpose<perm = [0, 2, 1]>(b) s = MatMul(a, t)
   p = Softmax<axis = -1>(s) o = MatMul(p, c) n = LayerNormalization<axis = -1>(o, scale) e = Erf(n)
   one = Constant<value_ints = [1]>() r = ReduceMean<keepdims = 0>(e, one) y = MatMul(r, u) }"""
# Cases with all operators of the others: XLA runs the same graph, and each operator has tests of its own.
PARTS = ("clip.value", "weight_decay by name", "factors of momentum", "average", "all of them")
SHAPES = {MLP: (3,), CNN: (1, 6, 6), DROPPED: (3,), ATTENTION: (4, 3)}


def model_of(text, kind="float"):
    rng = np.random.default_rng(0)
    sizes = {"{W}": 27 if text is CNN else 18, "{V}": 81, "{U}": 54 if text is CNN else 12}
    for mark, size in sizes.items():
        text = text.replace(mark, "{" + ", ".join(f"{v:.3f}" for v in rng.normal(scale=0.5, size=size)) + "}")
    model = onnx.parser.parse_model(text.replace("TYPE", "float" if kind == "float16" else kind))
    if kind == "float16":
        for tensor in model.graph.initializer:
            half = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(half, tensor.name))
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return model


def data_of(text, dtype=np.float32):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(ROWS, *SHAPES[text])).astype(dtype)
    y = np.stack([X.reshape(ROWS, -1).sum(axis=1), X.reshape(ROWS, -1)[:, 0]], axis=1)
    part = Rows({"X": X}, y.astype(dtype))
    return Data(part, part.head(20), part)


def gradients(text, kind="float", terms=()):
    data = data_of(text, np.float64 if kind == "double" else np.float32)
    loss = add_loss(convert(model_of(text, kind), data=data), AddLossConfig(LOSSES["l2"](), "mean"))
    return derive(penalty(loss, PenaltyConfig(dict(terms)))), data


def both(text=MLP, kind="float", rtol=2e-5, terms=(), **options):
    """Train in both engines; hold losses and tensors to each other, and return xla's result."""
    artifact, data = gradients(text, kind, terms)
    given = {"optimizer": OPTIMIZERS["sgd"](0.05), "epochs": 3, "batch_size": 8, **options}
    one, two = (train(artifact, TrainConfig(**given), data=data, runtime=r) for r in (RuntimeConfig(), XLA))
    assert one.tensors.keys() == two.tensors.keys()
    for name, array in one.tensors.items():
        assert two.tensors[name].dtype == array.dtype
        np.testing.assert_allclose(two.tensors[name], array, rtol=rtol, atol=rtol, err_msg=name)
    return two


@needs_jax
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "lbfgs"])
def test_every_optimizer_takes_the_same_steps(name):
    both(kind="double", rtol=1e-9, optimizer=OPTIMIZERS[name](lr=0.01), drop_last=True)  # compiled for one size


@needs_jax
@pytest.mark.parametrize(
    ("text", "drop_last", "rtol"),
    [(MLP, False, 1e-4), (CNN, True, 5e-4), (ATTENTION, True, 1e-4)],  # each size of a batch is a compilation
    ids=["mlp", "cnn", "attention"],
)
def test_networks_train_alike(text, drop_last, rtol):
    both(text, rtol=rtol, optimizer=OPTIMIZERS["momentum"](0.002), drop_last=drop_last)


@needs_jax
def test_halves_train_alike():
    both(kind="float16", rtol=5e-3, optimizer=OPTIMIZERS["adam"](0.01), drop_last=True)


@needs_jax
@pytest.mark.parametrize("case", [*CASES] if ALL else PARTS)
def test_parts_around_an_optimizer_are_the_same(case):
    name, settings, parts, *_ = CASES[case]
    parts = {**parts, "clip": ClipConfig(**parts["clip"])} if "clip" in parts else parts
    both(kind="double", rtol=1e-9, optimizer=OPTIMIZERS[name](**settings), drop_last=case != "all of them", **parts)


@needs_jax
@pytest.mark.parametrize(("accumulate", "drop_last"), [(4, False), (5, True)])
def test_what_accumulation_leaves_over_is_an_update_of_its_own(accumulate, drop_last):
    both(accumulate=accumulate, drop_last=drop_last)  # of six whole batches, two or one are left over


@needs_jax
def test_penalties_schedules_and_early_stopping_are_the_same():
    result = both(
        kind="double",
        rtol=1e-8,
        terms={"w": {"l1": 0.01, "l2": 0.02}, "u": {"group": 0.01}},
        schedule=SCHEDULES["cosine"](),
        warmup=3,
        early_stop=EarlyStopConfig(patience=2, min_delta=0.05),
        epochs=12,
    )
    assert len(result.tensors["losses/train"]) < 12


@needs_jax
def test_a_training_that_stops_and_goes_on_gives_the_same_bytes():
    artifact, data = gradients(DROPPED)
    config = TrainConfig(
        OPTIMIZERS["adam"](0.01), epochs=4, batch_size=8, drop_last=True, checkpoint=CheckpointConfig(epochs=2)
    )
    events = []
    whole = train(artifact, config, data=data, runtime=XLA, report=events.append)
    start = next(event for event in events if isinstance(event, Checkpoint))
    rest = train(artifact, config, data=data, runtime=XLA, start=start)
    assert start.epochs == 2
    assert {n: a.tobytes() for n, a in rest.tensors.items()} == {n: a.tobytes() for n, a in whole.tensors.items()}


@needs_jax
def test_pieces_of_an_epoch_give_the_bytes_of_the_whole(monkeypatch):
    artifact, data = gradients(DROPPED)
    config = TrainConfig(OPTIMIZERS["sgd"](0.05), epochs=2, batch_size=8, drop_last=True)
    whole = train(artifact, config, data=data, runtime=XLA)
    monkeypatch.setattr("ortpipe.data.batches.CHUNK", 2 * 8 * 5 * 4)  # two batches
    pieces = train(artifact, config, data=data, runtime=XLA)
    assert whole.tensors["losses/step"].tobytes() == pieces.tensors["losses/step"].tobytes()
    assert whole.tensors["parameter/w"].tobytes() == pieces.tensors["parameter/w"].tobytes()


@needs_jax
def test_dropout_follows_from_the_seed_and_compiles_once():
    artifact, data = gradients(DROPPED)
    config, events = TrainConfig(OPTIMIZERS["sgd"](0.0001), epochs=3, batch_size=8, shuffle=False), []
    one = train(artifact, config, data=data, runtime=XLA, report=events.append)
    other = train(artifact, dataclasses.replace(config, seed=1, drop_last=True), data=data, runtime=XLA)
    losses, others = one.tensors["losses/step"].reshape(3, 7), other.tensors["losses/step"].reshape(3, 6)
    assert not np.allclose(losses[0], losses[1], rtol=1e-3)  # another epoch, another draw
    assert not np.allclose(losses[:, :6], others, rtol=1e-3)
    remarks = [event.text for event in events if isinstance(event, Remark)]
    assert [re.findall(r"\d+", text)[0] for text in remarks] == ["8", "4"]
    assert all(re.fullmatch(r"compiled for batches of \d rows in \d+\.\d\d s", text) for text in remarks)


@needs_jax
def test_accumulated_batches_draw_numbers_of_their_own():
    artifact, data = gradients(DROPPED)
    config = TrainConfig(OPTIMIZERS["sgd"](0.0001), epochs=1, batch_size=8, accumulate=2, drop_last=True, shuffle=False)
    result = train(artifact, config, data=data, runtime=XLA)
    assert np.isfinite(result.tensors["losses/step"]).all()


@needs_jax
def test_a_run_writes_to_nothing_that_it_is_fed_wherever_that_begins():
    from ortpipe.runtime.xla.program import Program

    text = """<ir_version: 10, opset_import: ["" : 21]>
     g (float[64] w, float[steps,64] x) => (float[64] v, float[steps] l) {
       v, l = Scan<num_scan_inputs = 1, body = b (float[64] w, float[64] x) => (float[64] v, float l) {
         v = Add(w, x) l = ReduceSum<keepdims = 0>(v) }>(w, x) }"""
    program = Program(onnx.parser.parse_model(text), {}, XLA, steps="steps")
    memory = np.ones(64 + 16, np.float32)
    first = -memory.ctypes.data % 64 // 4  # where JAX takes an array without a copy
    w, x = memory[first : first + 64], np.ones((5, 64), np.float32)
    v, losses = program.run({"w": w, "x": x})
    again, fewer = program.run({"w": v, "x": x[:3]})
    assert (w == 1).all()
    assert (v == 6).all()
    assert (again == 9).all()
    assert losses.tolist() == [128, 192, 256, 320, 384]
    assert fewer.tolist() == [448, 512, 576]


@needs_jax
def test_what_diverges_names_its_gradients():
    artifact, data = gradients(MLP)
    with pytest.raises(ConvergenceError, match=r"largest gradient norms [wub] "):
        train(artifact, TrainConfig(OPTIMIZERS["sgd"](1e6), epochs=9, batch_size=8), data=data, runtime=XLA)


@needs_jax
def test_an_operator_that_is_not_compiled_is_named_before_any_step():
    artifact, data = gradients(MLP)
    events = []
    from ortpipe.runtime.xla import interpret

    table = {name: f for name, f in interpret.OPERATORS.items() if name != "Relu"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpret, "OPERATORS", table)
        with pytest.raises(ModelError, match=r"unsupported operators: Relu[\s\S]*engine=onnxruntime"):
            train(artifact, TrainConfig(epochs=1), data=data, runtime=XLA, report=events.append)
    assert events == []


def digest_of_digits():
    """Return the digest of a training whose products are large enough for several threads."""
    rng = np.random.default_rng(0)
    data = Data(Rows({"X": rng.random((512, 64), np.float32)}, np.arange(512) % 10))
    forward = convert(str(ROOT / "conf" / "models" / "digits.onnx"), data=data)
    gradient = derive(add_loss(forward, AddLossConfig(LOSSES["cross_entropy"]())))
    return train(gradient, TrainConfig(OPTIMIZERS["adam"](0.001), batch_size=128), data=data, runtime=XLA).digest()


@needs_jax
def test_two_processes_give_the_same_bytes_with_one_thread_each():
    script = "from stages.train import test_engine; print(test_engine.digest_of_digits())"
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "NPROC": "7"}  # XLA counts threads by NPROC
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [digest_of_digits()]


@needs_jax
def test_the_options_of_a_gpu_are_xlas():
    import jax

    from ortpipe.runtime.xla.client import devices
    from ortpipe.runtime.xla.program import _options

    devices(XLA)  # starts JAX as the engine does, once
    traced = jax.jit(lambda x: x + 1).lower(1.0)
    assert traced.compile(compiler_options=_options(RuntimeConfig(provider="cuda", engine="xla")))(1.0) == 2
    with pytest.raises(RuntimeError, match="No such compile option"):
        traced.compile(compiler_options={"xla_gpu_enable_triton_gems": False})


@needs_jax
@pytest.mark.skipif(XLA.provider != "cpu", reason="threads are the CPU's")
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted where the system lists them")
def test_a_client_of_other_threads_is_refused():
    artifact, data = gradients(MLP)
    train(artifact, TrainConfig(epochs=1), data=data, runtime=XLA)
    with pytest.raises(ModelError, match=r"started with 1[\s\S]*NPROC=2"):
        train(artifact, TrainConfig(epochs=1), data=data, runtime=dataclasses.replace(XLA, threads=2))


def test_without_jax_it_is_refused_before_any_work(monkeypatch):
    from ortpipe.runtime.providers import check_provider

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"needs JAX[\s\S]*pip install 'ortpipe\[xla\]'"):
        check_provider(XLA)
