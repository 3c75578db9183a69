"""convert.init: weights by name from runs, artifacts, .onnx and .safetensors files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from command import ROOT
from safetensors.numpy import save_file

from ortpipe import Artifact, ConvertConfig, Data, Rows, convert, save_artifact
from ortpipe.errors import ConfigError, ConvertError
from ortpipe.pipeline.digest import identity
from ortpipe.stages.convert.changes.config import WeightsFrom
from ortpipe.stages.convert.sources.onnx_file import OnnxFile

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,3] y)
    <float[2,4] w0 = {1, 2, 3, 4, 5, 6, 7, 8}, float[4] b0 = {0, 0, 0, 1},
     float[4,3] w1 = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}>
    { h = MatMul(X, w0) a = Add(h, b0) r = Relu(a) y = MatMul(r, w1) }"""
STATE = {  # as torch.nn.Sequential(Linear(2, 4), ReLU(), Linear(4, 3, bias=False)).state_dict() has it
    "0.weight": np.arange(8, dtype=np.float32).reshape(4, 2),
    "0.bias": np.float32([1, 2, 3, 4]),
    "2.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "1.num_batches_tracked": np.array(3),
}
OURS = {"w0": STATE["0.weight"].T, "b0": STATE["0.bias"], "w1": STATE["2.weight"].T}
MAP = {"0.weight": "w0", "0.bias": "b0", "2.weight": "w1"}


@pytest.fixture
def source(tmp_path: Path) -> OnnxFile:
    (path := tmp_path / "model.onnx").write_bytes(onnx.parser.parse_model(TEXT).SerializeToString())
    return OnnxFile(path=str(path))


def _initialized(source: OnnxFile, path: Path, **settings: Any) -> Artifact:
    return convert(None, ConvertConfig(source=source, init=WeightsFrom(path=str(path), **settings)))


def test_a_state_dict_goes_in_by_a_map(source: OnnxFile, tmp_path: Path) -> None:
    save_file(STATE, path := tmp_path / "torch.safetensors")
    artifact = _initialized(source, path, map=MAP, transpose=["w*"])
    assert {name: array.tolist() for name, array in artifact.initializers.items()} == {
        name: array.tolist() for name, array in OURS.items()
    }
    record = artifact.facts.lineage[0]
    weights, digest = {ours: theirs for theirs, ours in MAP.items()}, hashlib.sha256(path.read_bytes()).hexdigest()
    assert record["init"] == {"file": "torch.safetensors", "sha256": digest, "weights": weights}
    assert "takes 3 weights from torch.safetensors: w0, b0, w1" in record["notes"]
    assert artifact.tensors["source/b0"].tolist() == [0, 0, 0, 1]  # what the source itself has


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_other_float_types_are_cast(dtype: Any, source: OnnxFile, tmp_path: Path) -> None:
    arrays = {name: array.astype(dtype) for name, array in OURS.items()}
    path = tmp_path / "w.safetensors"
    if dtype is ml_dtypes.bfloat16:  # which safetensors writes for PyTorch only
        ends = np.cumsum([0, *(array.nbytes for array in arrays.values())]).tolist()
        header = {
            name: {"dtype": "BF16", "shape": array.shape, "data_offsets": ends[i : i + 2]}
            for i, (name, array) in enumerate(arrays.items())
        }
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in arrays.values()))
    else:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    artifact = _initialized(source, path)
    assert artifact.initializers["w0"].dtype == np.float32
    assert artifact.initializers["w0"].tolist() == OURS["w0"].tolist()


def test_runs_artifacts_and_files_give_their_weights_by_name(source: OnnxFile, tmp_path: Path) -> None:
    save_file(STATE, path := tmp_path / "torch.safetensors")
    other = _initialized(source, path, map=MAP, transpose=["w*"])
    folder = save_artifact(other, tmp_path / "artifact")
    for place in (folder, folder / "model.onnx"):
        again = _initialized(source, place)
        assert {n: a.tolist() for n, a in again.initializers.items()} == {n: a.tolist() for n, a in OURS.items()}


def test_the_files_content_and_not_its_place_counts(source: OnnxFile, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        save_file({"w": np.full(2, name == "c", np.float32)}, tmp_path / name / f"{name}.safetensors")
    a, b, c = (
        identity(ConvertConfig(source=source, init=WeightsFrom(path=str(tmp_path / n / f"{n}.safetensors"))))
        for n in ("a", "b", "c")
    )
    assert a == b != c
    assert identity(ConvertConfig(source=source))["init"] is None


def test_without_strict_what_is_left_is_said(source: OnnxFile, tmp_path: Path) -> None:
    save_file(
        {"w0": np.ascontiguousarray(OURS["w0"]), "more": np.ones(3, np.float32)}, path := tmp_path / "w.safetensors"
    )
    with pytest.raises(
        ConvertError, match=r"(?s)no value for b0 \[4\], w1 \[4, 3\]; not used: more \[3\].*strict=false"
    ):
        _initialized(source, path)
    notes = _initialized(source, path, strict=False).facts.lineage[0]["notes"]
    assert "takes 1 weights from w.safetensors: w0; of the model, b0, w1 had none there; not used: more" in notes
    with pytest.raises(ConvertError, match="At least one weight"):
        _initialized(source, path, strict=False, map={"w0": None})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"map": MAP}, r"(?s)0\.weight \[4, 2\] for w0 \[2, 4\].*w0, w1 fit transposed"),
        ({"map": {**MAP, "9.*": "x"}}, r"(?s)'9\.\*' is none.*The file has 0\.bias, 0\.weight, 2\.weight"),
        ({"map": {"0.*": "w0"}}, r"0\.bias, 0\.weight to 'w0'"),
        ({"map": {"0.weight": "*"}}, "wildcard"),
        ({"map": MAP, "transpose": ["q"]}, "must match a parameter"),
        ({"map": {"0.*": None}, "strict": True}, r"no value for w0 \[2, 4\]"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    settings: dict[str, Any], message: str, source: OnnxFile, tmp_path: Path
) -> None:
    save_file(STATE, path := tmp_path / "torch.safetensors")
    with pytest.raises(ConvertError, match=message):
        _initialized(source, path, **settings)


@pytest.mark.parametrize("name", ["nowhere.safetensors", "nowhere.onnx", "weights.pt", "broken.safetensors"])
def test_a_file_that_gives_no_weights_is_refused(name: str, source: OnnxFile, tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    (tmp_path / "weights.pt").write_bytes(b"pickle")
    with pytest.raises((ConvertError, ConfigError, RuntimeError), match=r"must exist|readable|executes no code"):
        _initialized(source, tmp_path / name)


def test_a_file_whose_weights_have_no_names_is_refused(source: OnnxFile, tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,2] y) {
        w = Constant<value = float[2,2] {1, 2, 3, 4}>() y = MatMul(X, w) }"""
    (path := tmp_path / "constant.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    with pytest.raises(ConvertError, match=r"(?s)named floats.*run-stage convert"):
        _initialized(source, path)


def test_the_prediction_is_compared_before_the_weights_change(source: OnnxFile, tmp_path: Path) -> None:
    save_file({n: np.ascontiguousarray(a) for n, a in OURS.items()}, path := tmp_path / "w.safetensors")
    rows = Rows({"X": np.ones((4, 2), np.float32)}, np.zeros((4, 3), np.float32))
    config = ConvertConfig(source=source, init=WeightsFrom(path=str(path)))
    assert convert(None, config, data=Data(train=rows)).facts.lineage[0]["discrepancy"] == 0


def test_a_real_file_takes_its_own_weights_back() -> None:
    digits = ROOT / "conf" / "models" / "digits.onnx"
    artifact = _initialized(OnnxFile(path=str(digits)), digits)
    assert artifact.digest() == convert(str(digits)).digest()
