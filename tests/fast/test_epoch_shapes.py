"""The shapes in an epoch graph of a fixed batch size."""

from __future__ import annotations

import onnx
import pytest

from ortpipe.fast import epoch as fast_epoch
from ortpipe.graph.core.inference import infer
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import ClipConfig, TrainConfig
from ortpipe.stages.train.epoch_graph import build_epoch
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.step import build_step


def noted(model):
    values = (v for g in model.graph.subgraphs() for v in (*g.inputs, *(y for n in g for y in n.outputs)))
    return {v.name: (v.dtype, None if v.shape is None else tuple(v.shape)) for v in values}


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adam", "nadam"])
def test_what_steps_note_of_their_shapes_is_what_inference_finds(monkeypatch, optimizer):
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,1] y)
      <float[2,3] w = {1, 2, 0.5, -1, 0.3, 0.1}, float[3] b = {0.1, 0, 0.2},
      float[3,1] u = {0.2, -0.4, 0.7}> { h = Gemm(X, w, b) r = Relu(h) m = MatMul(r, u) y = Tanh(m) }"""
    source = derive(add_loss(convert(onnx.parser.parse_model(text)), AddLossConfig(LOSSES["l2"]())))
    config = TrainConfig(OPTIMIZERS[optimizer](), clip=ClipConfig(norm=1.0), weight_decay=0.1, average=0.9)
    seen, again = [], []

    def compare(model):
        seen.append(before := noted(model))
        for graph in model.graph.subgraphs():
            for value in (y for node in graph for y in node.outputs if not y.is_graph_output()):
                value.shape = None
        infer(model)
        assert noted(model) == before

    monkeypatch.setattr(fast_epoch, "fold_sizes", compare)
    monkeypatch.setattr(fast_epoch, "infer", lambda model: (again.append(model), infer(model)))
    for chosen in (config, TrainConfig(OPTIMIZERS[optimizer]())):
        fast_epoch.fix_batch_size(build_epoch(build_step(source, chosen)), 32)
    assert len(seen) == 2
    assert len(again) == (1 if optimizer == "sgd" else len(again))  # a plain step's shapes are all known
