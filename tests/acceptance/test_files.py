from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from command import ROOT
from onnxruntime import InferenceSession

from acceptance.files import data
from acceptance.files.double import Reference
from acceptance.files.job import main as fine_tune
from acceptance.files.run import Entry, entries, judged, overrides, tried
from acceptance.files.slopes import slopes


def test_the_benchmark_of_real_files_fine_tunes_compares_and_judges(tmp_path: Path) -> None:
    digit = {
        "height": 8,
        "width": 8,
        "layout": "N1HW",
        "scale": 1 / 16,
        "alphabet": "0123456789",
        "length": 1,
        "place": 0,
    }
    entry = Entry("digits==0", "digits.onnx", "captchas", digit, batch=4, settings=("train.optimizer.lr=0.01",))
    path = ROOT / "conf" / "models" / entry.file
    fine_tune(tmp_path, overrides(entry, path, path.parent))
    outcome = judged(entry, path, tmp_path, Path(sys.executable))
    assert outcome.wrong == []
    assert outcome.row[-1] == "trains"
    assert float(outcome.cells["gradients"]) < 1e-5
    refused = dataclasses.replace(entry, refused="trees")
    assert judged(refused, path, tmp_path, Path(sys.executable)).wrong == ["trains, though it should be refused"]


def _wrong_by(factor: float) -> float:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[1, 2, 5] x, float[3, 2, 2] w, float[3] b) => (float l) {
        z = Conv(x, w, b)
        p = Relu(z)
        q = Mul(p, p)
        l = ReduceSum <keepdims = 0> (q)
    }"""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(1, 2, 5)).astype(np.float32), rng.normal(size=(3, 2, 2)).astype(np.float32)
    b = np.array([1, 2, -50], np.float32)  # the last has no gradient
    windows = np.lib.stride_tricks.sliding_window_view(x[0], 2, axis=1).astype(np.float64)  # [2, 4, 2]
    ends = 2 * np.maximum(np.einsum("oci,cti->ot", w, windows) + b[:, None], 0)
    gradients = {"w": factor * np.einsum("ot,cti->oci", ends, windows), "b": ends.sum(1)}
    single = {name: array.astype(np.float32) for name, array in gradients.items()}
    return slopes(onnx.parser.parse_model(text), "l", {"w": w, "b": b}, single, {"x": x})["off"]


def test_the_check_of_gradients_sees_one_that_is_wrong_by_a_hundredth_and_no_rounding() -> None:
    assert _wrong_by(1) < 1e-6
    assert 0.008 < _wrong_by(1.01) < 0.0101


def test_the_check_of_gradients_passes_by_a_weight_where_the_loss_has_a_kink() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[3] x, float[3] w) => (float l) {
        z = Mul(x, w)
        p = Relu(z)
        l = ReduceSum <keepdims = 0> (p)
    }""")
    x, w = np.array([3, 2, 1], np.float32), np.array([0, 1, 1], np.float32)
    seen = slopes(model, "l", {"w": w}, {"w": x}, {"x": x})
    assert [weight["at"] for weight in seen["weights"]] == ["w[1]", "w[2]"]
    assert seen["off"] < 1e-6


@pytest.mark.parametrize(
    "operator",
    [
        "MaxPool <kernel_shape = [3, 2], strides = [2, 3], ceil_mode = 1> (x)",
        'MaxPool <kernel_shape = [3, 2], strides = [2, 1], auto_pad = "SAME_LOWER"> (x)',
        "GlobalMaxPool(x)",
        "Erf(x)",
        "Conv <group = 2, strides = [2, 3], dilations = [2, 1], pads = [1, 0, 2, 1]> (x, w)",
        'Conv <group = 2, strides = [2, 3], auto_pad = "SAME_UPPER"> (x, w)',
    ],
)
def test_operators_in_float64_compute_what_the_runtime_does(operator: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[2, 4, 9, 10] x, float[6, 2, 3, 2] w) => (float[N, C, H, W] y) {{ y = {operator} }}"""
    rng, model = np.random.default_rng(0), onnx.parser.parse_model(text)
    fed = {"x": rng.normal(size=(2, 4, 9, 10)), "w": rng.normal(size=(6, 2, 3, 2))}
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    read = {node.name for node in session.get_inputs()}
    [expected] = session.run(None, {name: array.astype(np.float32) for name, array in fed.items() if name in read})
    reference = Reference(model)
    np.testing.assert_allclose(reference.run(fed, "y"), expected, atol=1e-5)
    if operator.startswith("Conv"):
        moved = {**fed, "w": 2 * fed["w"]}  # only what reads it is computed again
        np.testing.assert_allclose(reference.run(moved, "y"), 2 * expected, atol=1e-5)


@pytest.mark.parametrize(
    ("files", "runs"),
    [
        ({"run.json": {"losses": []}}, 1),
        ({"run.json": {"refused": "no", "after": []}}, 0),
        ({"run.json": {"losses": []}, "slopes.json": {}}, 0),
    ],
)
def test_what_is_kept_is_a_run_that_got_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, object], runs: int
) -> None:
    entry, started = Entry("a==1", "a.onnx", "speech"), []
    place = tmp_path / "runs" / "a_a.onnx"
    place.mkdir(parents=True)
    said = overrides(entry, tmp_path / "a.onnx", tmp_path)
    for name, content in {"command.json": said, **files}.items():
        (place / name).write_text(json.dumps(content))
    monkeypatch.setattr("acceptance.files.run.subprocess.run", lambda *a, **k: started.append(a))
    monkeypatch.setattr("acceptance.files.run.judged", lambda *a: None)
    tried(entry, tmp_path, tmp_path, Path(sys.executable), keep=True)
    assert len(started) == runs


def test_every_file_of_the_benchmark_is_one_of_a_version_with_data_of_its_kind() -> None:
    listed = entries()
    assert len({e.name for e in listed}) == len(listed) >= 24
    assert len({e.package for e in listed if e.refused is None}) >= 12
    assert [e.name for e in listed if "==" not in e.package or not hasattr(data, e.data)] == []
