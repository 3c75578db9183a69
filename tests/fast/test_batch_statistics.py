"""What a BatchNormalization computes of its batch, the backward pass does not compute again."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortpipe.data.rows import Data, Rows
from ortpipe.fast import passes
from ortpipe.fast.epoch import EpochGraph, fix_batch_size
from ortpipe.fast.passes import PASSES, read_batch_statistics
from ortpipe.graph.core.check import finish
from ortpipe.graph.forms.modes import UNBIASED, VARIANCE
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import EarlyStopConfig, TrainConfig
from ortpipe.stages.train.epoch_graph import build_epoch
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train
from ortpipe.stages.train.step import build_step

NETWORK = """<ir_version: 10, opset_import: ["" : 21]> g (float[N,2,3,4] X) => (float[N,1] y)
 <float[2,2,1,1] k = {1, 0.1, 0, 1}, float[2] s = {1, 2}, float[2] t = {0.1, 0}, float[2] mean = {0, 90},
  float[2] var = {1, 3}>
 { h = Conv(X, k) n, m, v = BatchNormalization<training_mode=1, momentum=0.75>(h, s, t, mean, var)
   r = HardSwish(n) f = Flatten(r) y = MatMul(f, w) }"""

OTHERS = tuple(one for one in PASSES if one is not read_batch_statistics)


@pytest.fixture(params=["biased", UNBIASED])
def source(request):
    model = onnx.parser.parse_model(NETWORK)
    w = np.random.default_rng(1).normal(size=(24, 1)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    if request.param == UNBIASED:
        model.graph.node[1].metadata_props.add(key=VARIANCE, value=UNBIASED)
    return derive(add_loss(convert(model, data=rows()), AddLossConfig(LOSSES["l2"](), "mean")))


def rows():
    rng = np.random.default_rng(0)
    X = rng.normal([[[0.0]], [[100.0]]], 1, (40, 2, 3, 4)).astype(np.float32)  # the second mean is far from 0
    return Data(Rows({"X": X}, X.mean(axis=(1, 2, 3)).reshape(-1, 1)))


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}], ids=["plain", "accumulated"])
def test_training_without_the_pass_comes_to_the_same_weights_and_statistics(source, options, monkeypatch):
    config = TrainConfig(OPTIMIZERS["sgd"](0.01), epochs=3, batch_size=8, **options)
    whole = train(source, config, data=rows()).tensors
    monkeypatch.setattr(passes, "PASSES", OTHERS)
    without = train(source, config, data=rows()).tensors
    for name, array in whole.items():
        np.testing.assert_allclose(without[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def test_neither_mean_nor_variance_is_summed_up_again(source):
    def sums(passes):
        step = build_step(source, TrainConfig(OPTIMIZERS["sgd"](0.01)))
        epoch = EpochGraph(build_epoch(step), step.seed, step.gradients)
        fix_batch_size(epoch.model, 8)
        for one in passes:
            one(epoch)
        finish(epoch.model)
        return Counter(node.op_type for node in epoch.body)["ReduceSum"]

    assert sums(OTHERS) == sums(PASSES) + 2


# what stands in the step → whether the node's momentum is 0 behind the pass
BODIES = {
    "mean and variance": ("24.0", "0, 2, 3", "c, d", "m, v", True),
    "a quotient of another count": ("23.0", "0, 2, 3", "c, d", "m, v", False),
    "a sum over other axes": ("24.0", "0, 1, 2", "c, d", "m, v", False),
    "statistics that are constants": ("24.0", "0, 2, 3", "k, k", "m, v", False),
    "one channel": ("24.0", "0, 2, 3", "c, d", "m, v", True),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_pass_acts_on_averages_over_the_batch_alone(name):
    count, axes, read, written, acts = BODIES[name]
    channels = 1 if name == "one channel" else 2
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[2] a, float[2] b, float[s,2,2,3,4] X) => (float[2] a1, float[2] b1, float[s,2,2,3,4] Y) {{
        a1, b1, Y = Scan<num_scan_inputs=1,
          body = step (float[2] c, float[2] d, float[2,2,3,4] x) => (float[2] m, float[2] v, float[2,2,3,4] z) {{
            axes = Constant<value_ints=[{axes}]>() n = Constant<value_float={count}>()
            k = Constant<value = float[2] {{1, 2}}>()
            y, {written} = BatchNormalization<training_mode=1, momentum=0.5>(x, k, k, {read})
            t = ReduceSum(x, axes) u = Div(t, n) e = Sub(x, u) q = Mul(e, e) r = ReduceSum(q, axes) w = Div(r, n)
            p = Mul(y, w) z = Add(p, u) }}>(a, b, X) }}"""
    if name == "one channel":
        text = text.replace("2,2,3,4", "2,1,3,4").replace("float[2]", "float[1]").replace("{1, 2}", "{1}")
    model = onnx.parser.parse_model(text)
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    epoch = EpochGraph(ir.from_proto(model))
    read_batch_statistics(epoch)
    [node] = [node for node in epoch.body if node.op_type == "BatchNormalization"]
    assert (node.attributes["momentum"].as_float() == 0) == acts
    rng = np.random.default_rng(0)
    feeds = {"a": rng.random(channels), "b": rng.random(channels), "X": rng.normal(50, 1, (3, 2, channels, 3, 4))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    for got, expected in zip(Session(finish(epoch.model)).run(feeds), Session(model).run(feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


TWICE = """<ir_version: 10, opset_import: ["" : 21]> g (float[N,3] X) => (float[N,1] y)
 <float[3,3] w = {0.5, -0.7, 1.1, 0.3, -0.4, 0.9, 0.2, 0.1, -0.6}, float[3] c = {1, 1, 1}, float[3] b = {0, 0, 0},
  float[3] mean = {1, 1, 1}, float[3] var = {1, 1, 1}, float[3,1] u = {0.8, -0.6, 0.4}>
 { h = MatMul(X, w) n, m, s = BatchNormalization<training_mode = 1>(h, c, b, mean, var) t = Tanh(n)
   k, p, q = BatchNormalization<training_mode = 1>(t, c, b, mean, var) y = MatMul(k, u) }"""


def test_a_layer_that_is_used_twice_writes_over_no_statistics_but_its_own():
    rows = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    validation = Rows({"X": rows[:, :3]}, -rows[:, 3:])  # it gets worse from the first epoch on
    data = Data(Rows({"X": rows[:, :3]}, rows[:, 3:]), validation)
    source = derive(add_loss(convert(onnx.parser.parse_model(TWICE)), AddLossConfig(LOSSES["l2"]())))
    trained = []
    for epochs in (1, 5):
        config = TrainConfig(OPTIMIZERS["sgd"](0.05), epochs=epochs, batch_size=8, early_stop=EarlyStopConfig(3))
        trained.append(train(source, config, data=data).tensors)
        for name in ("mean", "var"):
            np.testing.assert_array_equal(source.initializers[name], np.ones(3))
            np.testing.assert_array_equal(trained[-1][f"initial/{name}"], np.ones(3))
    one, restored = trained
    assert len(restored["losses/validation"]) == 4
    for name in ("w", "mean", "var"):
        np.testing.assert_array_equal(restored[f"parameter/{name}"], one[f"parameter/{name}"])
