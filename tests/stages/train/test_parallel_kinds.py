"""Workers train models of more kinds as one process does: heads, class weights, half precision, an own optimizer."""

import dataclasses
import importlib

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from ortpipe.data.rows import Data, Rows
from ortpipe.parallel import ParallelConfig
from ortpipe.stages.add_loss.config import AddLossConfig, HeadLoss
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.prediction.meaning import OutputSettings
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.optimizers import OPTIMIZERS
from ortpipe.stages.train.stage import train

RNG = np.random.default_rng(0)
X, KIND, SIZE = RNG.normal(size=(40, 3)).astype(np.float32), RNG.integers(0, 3, 40), RNG.normal(size=(40, 2))
MODEL = """<ir_version: 10, opset_import: ["" : 21]> g (float[N, 3] X) => (float[N, 3] kind, float[N, 2] size)
  <float[3, 3] w = {0.5, -0.7, 1.1, 0.3, -0.4, 0.9, 0.2, 0.1, -0.6}, float[3, 2] u = {0.1, 0.2, 0.3, -0.4, 0.5, -0.6}>
  { k = MatMul(X, w) kind = Softmax(k) size = MatMul(X, u) }"""
OWN = """
from dataclasses import dataclass
from ortpipe.stages.train.links import scale_by_rate
from ortpipe.stages.train.optimizers import Optimizer

@dataclass(frozen=True)
class Plain(Optimizer):
    lr: float = 0.1
    def __call__(self):
        return (scale_by_rate(),)
"""
SGD = OPTIMIZERS["sgd"](0.1)


def model(heads=False, class_weight=None, halves=False):
    """Return a model of three classes, the settings of its source, and rows."""
    proto = onnx.parser.parse_model(MODEL)
    if halves:
        for tensor in proto.graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
        for value in (*proto.graph.input, *proto.graph.output):
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    data = Data(Rows({"X": X}, KIND, heads={"size": SIZE} if heads else {}), class_weight=class_weight or {})
    settings = {"heads": {"size": OutputSettings()}} if heads else {}
    return proto, settings, data


CASES = {
    "heads and class weights": ({"heads": True, "class_weight": {0: 3.0, 1: 1.0, 2: 0.5}}, SGD, 1e-5),
    "half precision with an own optimizer": ({"halves": True}, "own", 2e-3),
}


@pytest.mark.parametrize("case", CASES)
def test_a_training_of_this_kind_is_that_of_one_process(tmp_path, monkeypatch, case):
    kind, optimizer, tolerance = CASES[case]
    if optimizer == "own":  # of a module that only this process's path has
        (tmp_path / "own_parallel.py").write_text(OWN)
        monkeypatch.syspath_prepend(tmp_path)
        optimizer = importlib.import_module("own_parallel").Plain()
    proto, settings, data = model(**kind)
    onnx.save(proto, tmp_path / "model.onnx")
    source = OnnxFile(str(tmp_path / "model.onnx"), prediction="kind", classes=(0, 1, 2), **settings)
    heads = {"size": HeadLoss(LOSSES["l2"]())} if settings else {}
    loss = AddLossConfig(LOSSES["cross_entropy"](), heads=heads)
    gradients = derive(add_loss(convert(None, ConvertConfig(source), data=data), loss, data=data))
    config = TrainConfig(optimizer, epochs=3, batch_size=16)
    split = dataclasses.replace(config, parallel=ParallelConfig(slices=3, workers=1))
    alone, together = train(gradients, config, data=data), train(gradients, split, data=data)
    for name, tensor in alone.tensors.items():
        np.testing.assert_allclose(together.tensors[name], tensor, rtol=tolerance, atol=tolerance, err_msg=name)
    assert (together.tensors["parameter/w"] != together.tensors["initial/w"]).all()
