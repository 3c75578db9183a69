"""Convolutions of blocks of channels give what plain ones give, and only those are written that are the faster ones."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortpipe.data.rows import Data, Rows
from ortpipe.fast import blocked
from ortpipe.fast.blocked import DOMAIN, block_channels, block_size
from ortpipe.fast.epoch import EpochGraph
from ortpipe.fast.passes import PASSES, passes_for
from ortpipe.graph.core.check import clean, finish
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train import epoch_graph
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

PADS = "pads=[1,1,1,1]"
# x, the weights c, what the step does with them → how many convolutions run in blocks, and how many copies they read
STEPS = {
    "a convolution": ((4, 16, 5, 6), (32, 16, 3, 3), "y = Conv(x, c)", 1, 1),
    "pads, strides and dilations": (
        *((4, 32, 9, 8), (16, 32, 3, 2)),
        *("y = Conv<pads=[2,0,1,1], strides=[2,1], dilations=[1,2]>(x, c)", 1, 1),
    ),
    "automatic pads": ((4, 16, 7, 8), (16, 16, 3, 3), 'y = Conv<auto_pad="SAME_LOWER", strides=[2,2]>(x, c)', 1, 1),
    "kernels and channels that fill no block": ((4, 44, 5, 5), (44, 44, 3, 3), f"y = Conv<{PADS}>(x, c)", 1, 1),
    "few channels of large kernels": ((4, 3, 9, 9), (12, 3, 5, 5), "y = Conv(x, c)", 1, 0),
    "a bias": ((4, 16, 4, 4), (12, 16, 3, 3), "b = ReduceSum<keepdims=0>(c, axes) y = Conv(x, c, b)", 1, 1),
    "two groups": ((4, 64, 4, 4), (32, 32, 3, 3), f"y = Conv<group=2, {PADS}>(x, c)", 1, 1),
    "a depthwise one": ((4, 16, 5, 5), (16, 1, 3, 3), f"y = Conv<group=16, {PADS}>(x, c)", 1, 1),
    "one that fills no block": ((4, 20, 5, 5), (20, 1, 3, 3), "y = Conv<group=20, strides=[2,2]>(x, c)", 1, 1),
    "Relu": ((4, 16, 4, 4), (16, 16, 3, 3), "z = Conv(x, c) y = Relu(z)", 1, 1),
    "Relu and another reader": ((4, 16, 4, 4), (16, 16, 3, 3), "z = Conv(x, c) r = Relu(z) y = Add(z, r)", 1, 1),
    "one behind another": ((4, 44, 6, 6), (44, 44, 3, 3), f"z = Conv<{PADS}>(x, c) y = Conv(z, c)", 2, 1),
    "one behind another's Relu": (
        *((4, 44, 6, 6), (44, 44, 3, 3)),
        *(f"z = Conv<{PADS}>(x, c) r = Relu(z) y = Conv(r, c)", 2, 1),
    ),
    "one of what Relu reads": (
        *((4, 16, 6, 6), (16, 16, 3, 3)),
        *(f"z = Conv<{PADS}>(x, c) v = Conv<{PADS}>(z, c) r = Relu(z) y = Add(v, r)", 2, 1),
    ),
    "a transposed one": ((4, 16, 4, 5), (16, 32, 3, 2), "y = ConvTranspose(x, c)", 1, 1),
    "its pads and dilations": (
        *((4, 44, 7, 8), (44, 12, 3, 3)),
        *("y = ConvTranspose<pads=[1,0,2,1], dilations=[1,2]>(x, c)", 1, 1),
    ),
    "a depthwise transposed one": ((4, 16, 5, 5), (16, 1, 3, 3), f"y = ConvTranspose<group=16, {PADS}>(x, c)", 1, 1),
    "a kernel of one place": ((4, 16, 4, 4), (16, 16, 1, 1), "y = Conv(x, c)", 0, 0),
    "few channels": ((4, 3, 9, 9), (16, 3, 3, 3), "y = Conv(x, c)", 0, 0),
    "six kernels": ((4, 16, 4, 4), (6, 16, 3, 3), "y = Conv(x, c)", 0, 0),
    "channels that are not read by four": ((4, 18, 4, 4), (32, 18, 3, 3), "y = Conv(x, c)", 0, 0),
    "kernels of more numbers than the result": ((3, 16, 8, 8), (16, 16, 7, 7), "y = Conv(x, c)", 0, 0),
    "mostly zeros": ((4, 17, 4, 4), (20, 17, 3, 3), "y = Conv(x, c)", 0, 0),
    "groups of less than a block": ((4, 16, 4, 4), (16, 4, 3, 3), "y = Conv<group=4>(x, c)", 0, 0),
    "two kernels of each channel": ((4, 16, 5, 5), (32, 1, 3, 3), "y = Conv<group=16>(x, c)", 0, 0),
    "lines": ((4, 16, 9), (16, 16, 3), "y = Conv(x, c)", 0, 0),
    "a transposed one with strides": ((4, 16, 4, 4), (16, 16, 3, 3), "y = ConvTranspose<strides=[2,2]>(x, c)", 0, 0),
    "pads wider than its kernels": ((4, 16, 8, 8), (16, 16, 2, 2), "y = ConvTranspose<pads=[2,2,2,2]>(x, c)", 0, 0),
    "Relu behind another": ((4, 16, 4, 4), (16, 16, 1, 1), "z = Conv(x, c) y = Relu(z)", 0, 0),
}


def model_of(text, **arrays):
    """Return the model with these initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def weights(*shape, scale=0.1):
    return np.random.default_rng(1).normal(0, scale, shape).astype(np.float32)


def gradient_of(model, image, outputs, count=32):
    """Return the gradient model of a squared error, and made-up rows."""
    rng = np.random.default_rng(2)
    data = Data(Rows({"X": rng.normal(size=(count, *image))}, rng.normal(size=(count, outputs))))
    return derive(add_loss(convert(model, data=data), AddLossConfig(LOSSES["l2"](), "mean"))), data


def epoch_of(x, w, step):
    """Return the Scan of a step over [3, *x] that hands its weights on as they are."""
    text = f"""
        g (float{[*w]} W, float{[3, *x]} X) => (float{[*w]} end, float[] Y) {{
        end, Y = Scan<num_scan_inputs=1, body = step (float{[*w]} c, float{[*x]} x) => (float{[*w]} d, float[] y) {{
            axes = Constant<value_ints=[1,2,3]>() {step} d = Identity(c) }}>(W, X) }}"""
    model = model_of(text)
    model.graph.output[1].type.tensor_type.ClearField("shape")
    model.graph.node[0].attribute[1].g.output[1].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_gives_the_same_in_blocks(name):
    x, w, step, count, copies = STEPS[name]
    model = epoch_of(x, w, step)
    epoch = EpochGraph(ir.from_proto(model))
    block_channels(epoch)
    faster = finish(epoch.model)
    kinds = [node.op_type for node in EpochGraph(ir.from_proto(faster)).body if node.domain == DOMAIN]
    assert (kinds.count("Conv"), kinds.count("ReorderInput")) == (count, copies)
    rng = np.random.default_rng(0)
    feeds = {"W": rng.normal(size=w).astype(np.float32), "X": rng.normal(size=(3, *x)).astype(np.float32)}
    for got, expected in zip(Session(faster).run(feeds), Session(model).run(feeds), strict=True):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())


# the images, the kernels, the attributes → how many convolutions run in blocks: of y and dw, or of one of them
GRADIENTS = {
    "plain": ((16, 5, 6), (16, 16, 3, 3), "", 2),
    "pads that differ": ((16, 9, 8), (32, 16, 3, 2), ", pads=[2,0,1,3]", 2),
    "strides that leave places at the end": ((16, 9, 10), (16, 16, 3, 3), ", strides=[2,3], pads=[1,1,1,1]", 2),
    "dilations": ((16, 9, 9), (16, 16, 3, 3), ", dilations=[2,1], strides=[1,2], pads=[2,1,2,1]", 2),
    "one channel, read as it lies": ((1, 8, 8), (16, 1, 3, 3), ", pads=[1,1,1,1]", 1),
    "large kernels": ((16, 9, 9), (16, 16, 5, 5), "", 2),
    "automatic pads": ((16, 7, 9), (16, 16, 3, 3), ', auto_pad="SAME_UPPER", strides=[2,2]', 2),
    "many channels of small images": ((128, 3, 3), (128, 128, 2, 2), "", 1),
    "kernels that fill no block": ((16, 6, 6), (12, 16, 3, 3), "", 1),
    "windows of pads alone": ((16, 9, 1), (16, 16, 2, 1), ", pads=[0,1,0,1], strides=[1,3]", 1),
    "few channels of large kernels": ((3, 11, 12), (16, 3, 7, 7), ", strides=[2,2], pads=[3,3,3,3]", 2),
    "one place": ((16, 6, 6), (16, 16, 1, 1), "", 0),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_training_has_the_same_kernel_gradients_in_blocks(name, monkeypatch):
    image, kernel, attributes, count = GRADIENTS[name]
    sizes = ",".join(map(str, image))
    text = f"""g (float[N,{sizes}] X) => (float[N,{kernel[0]}] y) {{
        a = Conv<kernel_shape={[*kernel[2:]]}{attributes}>(X, k) t = Tanh(a) y = ReduceMean<keepdims=0>(t, axes) }}"""
    k = weights(*kernel, scale=1 / np.sqrt(np.prod(kernel[1:])))
    source, data = gradient_of(model_of(text, k=k, axes=np.array([2, 3])), image, kernel[0])
    assert_same_training(source, data, count, monkeypatch)


def assert_same_training(source, data, count, monkeypatch, **options):
    """Assert that training with so many convolutions in blocks, and without, moves the weights alike."""
    counts = []
    config = TrainConfig(**{"optimizer": OPTIMIZERS["sgd"](1.0), "epochs": 1, "batch_size": 32, **options})

    def counted(model):
        clean(model)
        counts.append(sum((node.domain, node.op_type) == (DOMAIN, "Conv") for node in model.graph.all_nodes()))

    monkeypatch.setattr(epoch_graph, "clean", counted)
    blocks = train(source, config, data=data).tensors
    monkeypatch.setattr(blocked, "block_size", lambda: None)
    plain = train(source, config, data=data).tensors
    assert counts == [count, 0]
    for name in source.facts.gradients:
        first = plain[f"initial/{name}"]
        moved, expected = blocks[f"parameter/{name}"] - first, plain[f"parameter/{name}"] - first
        np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}], ids=["plain", "accumulated"])
def test_training_without_blocks_comes_to_the_same_weights(options, monkeypatch):
    """Of a convolution, its Relu, a convolution, a depthwise one, a transposed one: all of them in blocks."""
    text = """g (float[N,3,8,8] X) => (float[N,1] y) {
        a = Conv<pads=[2,2,2,2]>(X, k1, b1) r = Relu(a) b = Conv<pads=[1,1,1,1]>(r, k2)
        c = Conv<pads=[1,1,1,1], group=16>(b, k3) t = Tanh(c) d = ConvTranspose<pads=[1,1,1,1]>(t, k4)
        m = ReduceMean<keepdims=0>(d, axes) y = Gemm(m, w) }"""
    shapes = {"k1": (16, 3, 5, 5), "b1": (16,), "k2": (16, 16, 3, 3), "k3": (16, 1, 3, 3), "k4": (16, 16, 3, 3)}
    arrays = {name: weights(*shape, scale=0.2) for name, shape in {**shapes, "w": (16, 1)}.items()}
    source, data = gradient_of(model_of(text, **arrays, axes=np.array([2, 3])), (3, 8, 8), 1, count=64)
    # y of all four, dx of all but the first one, dw of all but the depthwise one
    assert_same_training(source, data, 10, monkeypatch, optimizer=OPTIMIZERS["sgd"](0.1), batch_size=16, **options)


def test_a_relu_in_a_loop_is_not_done_by_the_convolution_around_it(monkeypatch):
    text = """g (float[N,16,6,6] X) => (float[N,16] y) {
        total = ReduceSum<keepdims=0>(X) none = Mul(total, zero) moved = Add(k, none)
        z = Conv<pads=[1,1,1,1]>(X, moved)
        v = Loop(count, , X)<body = step (int64 i, bool c, float[N,16,6,6] b) => (bool d, float[N,16,6,6] r) {
            d = Identity(c) r = Relu(z) }> u = ReduceMean<keepdims=0>(v, axes) y = Gemm(u, w) }"""
    arrays = {"k": weights(16, 16, 3, 3), "w": np.eye(16, dtype=np.float32), "axes": np.array([2, 3])}
    model = model_of(text, **arrays, count=np.array(3), zero=np.array(0, np.float32))
    source, data = gradient_of(model, (16, 6, 6), 16)
    assert_same_training(source, data, 1, monkeypatch)


def test_constant_weights_are_left_to_onnxruntime():
    """It lays them out when it loads the model."""
    model = epoch_of((4, 16, 4, 4), (16, 16, 3, 3), "b = Mul(c, c) y = Conv(x, k)")
    k = onnx.numpy_helper.from_array(weights(16, 16, 3, 3), "k")
    model.graph.node[0].attribute[1].g.initializer.append(k)
    epoch = EpochGraph(ir.from_proto(model))
    block_channels(epoch)
    assert "nchwc" not in str(epoch.model)


def test_only_a_processor_with_such_kernels_takes_blocks(monkeypatch):
    assert block_size() in (8, 16)
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert block_size.__wrapped__() is None
    assert passes_for(RuntimeConfig()) == passes_for(RuntimeConfig(threads=2)) == (block_channels, *PASSES)
    assert passes_for(RuntimeConfig(provider="cuda")) == PASSES
