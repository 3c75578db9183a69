"""How often a stage parses, serialises, shapes and checks a model, and hashes an artifact: as seldom as it can."""

from __future__ import annotations

import collections

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ortpipe import artifact as artifacts
from ortpipe.data.rows import Data, Rows
from ortpipe.flow import FLOW
from ortpipe.hashing import Hasher
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.train.config import TrainConfig

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 2] X) => (float[N, 1] Y)
<float[2, 3] v = {1, -2, 3, 0.5, 0.25, 4}, float[3] a = {1, 2, 3}, float[3, 1] w = {1, 0.5, -1}, float[1] b = {2}> {
  h = MatMul(X, v)  s = Add(h, a)  r = Relu(s)  p = MatMul(r, w)  Y = Add(p, b)
}"""
CNN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, 1, 8, 8] X) => (float[batch, 3] Y) <float[2, 1, 3, 3] k = {1, 2, 3, 4, 5, 6, 7, 8, 9,
  9, 8, 7, 6, 5, 4, 3, 2, 1}, float[2] a = {0.5, -0.5}, float[3, 2] w = {1, 2, -3, 0.5, 0.25, 4},
  float[3] b = {1, 2, 3}> {
  c = Conv(X, k, a)  r = Relu(c)  m = MaxPool <kernel_shape = [6, 6]> (r)  f = Flatten(m)
  z = Gemm <transB = 1> (f, w, b)  Y = Softmax(z)
}"""
WATCHED = {
    "parse": (ir.serde, "deserialize_model"),
    "serialise": (ir.serde, "serialize_model"),
    "infer": (onnx.shape_inference, "infer_shapes"),
    "check": (onnx.checker, "check_model"),
}
# For a two-layer MLP: parses, serialisations, shape inferences and checks.
MOST = {
    "convert": (1, 2, 2, 2),  # the shapes of all values, the artifact
    "add_loss": (1, 1, 1, 1),
    "penalty": (1, 1, 1, 1),
    "derive": (1, 1, 1, 1),
    "train": (5, 5, 4, 2),
    "evaluate": (1, 3, 0, 0),
}


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    """Run the six stages; return how often each did what is watched, and how often each artifact was hashed."""
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    rng = np.random.default_rng(0)
    rows = Rows({"X": rng.normal(size=(24, 2)).astype(np.float32)}, rng.normal(size=(24, 1)).astype(np.float32))
    context = {
        "data": Data(rows.take(np.arange(16)), None, rows.take(np.arange(16, 24))),
        "runtime": RuntimeConfig(),
        "report": lambda progress: None,
        "start": None,
    }
    configs = {
        "convert": ConvertConfig(OnnxFile(str(path))),
        "add_loss": AddLossConfig(LOSSES["l2"]()),
        "penalty": PenaltyConfig({"*": {"l2": 0.1}}),
        "derive": DeriveConfig(),
        "train": TrainConfig(epochs=2),
        "evaluate": EvaluateConfig(),
    }
    done: dict[str, collections.Counter[str]] = {}
    with pytest.MonkeyPatch.context() as patch:
        current: collections.Counter[str] = collections.Counter()

        def watch(place, name, function):
            def watched(*args, **kwargs):
                current[name] += 1
                return function(*args, **kwargs)

            patch.setattr(place[0], place[1], watched)

        for name, place in WATCHED.items():
            watch(place, name, getattr(*place))

        class Watched(Hasher):
            def __init__(self, tag):
                current["hash"] += 1
                super().__init__(tag)

        patch.setattr(artifacts, "Hasher", Watched)
        artifact = None
        for stage in FLOW:
            current.clear()
            artifact = stage(artifact, configs[stage.name], **context)
            assert artifact.digest() == artifact.digest()
            done[stage.name] = collections.Counter(current)
    return done


def test_an_exported_cnn_is_read_and_run_as_seldom_as_it_can(tmp_path, monkeypatch):
    path, rng, done = tmp_path / "cnn.onnx", np.random.default_rng(0), collections.Counter()
    onnx.save(onnx.parser.parse_model(CNN), path)
    rows = Rows({"X": rng.normal(size=(24, 1, 8, 8)).astype(np.float32)}, rng.integers(0, 3, (24, 1)))
    places = {**WATCHED, "session": (onnxruntime, "InferenceSession")}

    def watch(name, place, function):
        def watched(*args, **kwargs):
            done[f"full {name}" if kwargs.get("full_check") else name] += 1
            return real(*args, **kwargs)

        real = getattr(place, function)
        monkeypatch.setattr(place, function, watched)

    for name, place in places.items():
        watch(name, *place)
    convert(None, ConvertConfig(OnnxFile(str(path))), data=Data(rows, None, None))
    most = {"parse": 2, "serialise": 2, "infer": 3, "check": 1, "full check": 1, "session": 2}
    assert {name: count for name, count in done.items() if count > most[name]} == {}


@pytest.mark.parametrize("stage", FLOW, ids=lambda stage: stage.name)
def test_a_stage_parses_serialises_shapes_and_checks_no_more_often_than_it_has_to(counts, stage):
    most = dict(zip(WATCHED, MOST[stage.name], strict=True))
    assert {name: count for name, count in counts[stage.name].items() if count > most.get(name, count)} == {}


def test_each_artifact_is_hashed_once(counts):
    assert {name: done["hash"] for name, done in counts.items()} == dict.fromkeys(counts, 1)
