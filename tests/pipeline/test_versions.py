"""A stage whose results change raises its VERSION: else results that the old code stored would be taken for its own."""

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest

from ortpipe.flow import FLOW
from ortpipe.pipeline.digest import versions
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import LOSSES
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.onnx_file import OnnxFile
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.penalty.config import PenaltyConfig

RECORD = Path(__file__).with_name("versions.json")  # stage → [VERSION, digest of its result], and by which packages
MODEL = """<ir_version: 8, opset_import: ["" : 18]>
g (float[N, 2] X) => (float[N, 1] Y)
<float[2, 3] v = {1, -2, 3, 0.5, 0.25, 4}, float[3] a = {1, 2, 3}, float[3, 1] w = {1, 0.5, -1}, float[1] b = {2}> {
  h = MatMul(X, v)  s = Add(h, a)  r = Relu(s)  p = MatMul(r, w)  Y = Add(p, b)
}"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    configs = {
        "convert": ConvertConfig(OnnxFile(str(path))),
        "add_loss": AddLossConfig(LOSSES["elastic"]()),
        "penalty": PenaltyConfig({"*": {"l1": 0.1, "l2": 0.2}}),
        "derive": DeriveConfig(),
    }
    results, artifact = {}, None
    for stage in FLOW[: len(configs)]:
        artifact = stage(artifact, configs[stage.name], data=None)
        results[stage.name] = [stage.version, artifact.digest()]
    return results


@pytest.mark.parametrize("stage", FLOW[:4], ids=lambda stage: stage.name)
def test_a_stage_gives_what_its_version_gave(found, stage):
    record = json.loads(RECORD.read_text())
    if (here := versions(("onnx", "onnx-ir"))) != record["packages"]:
        pytest.skip(f"recorded with {record['packages']}, which are other versions than {here}")
    now, then = found[stage.name], record["stages"][stage.name]
    assert now[1] == then[1] or now[0] > then[0], f"raise the VERSION of {stage.name}, and record {now}"
    assert now == then, f"record {now}"
