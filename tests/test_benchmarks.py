from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from command import run
from onnxruntime import InferenceSession

from benchmarks.contest import PEERS, check, entrants
from benchmarks.earlier.__main__ import FAILED, PASSED, PURPOSE, Result, may_match
from benchmarks.earlier.known import DELIBERATE
from benchmarks.models import data
from benchmarks.models.__main__ import Entry, entries, judged, overrides, tried
from benchmarks.models.double import Reference
from benchmarks.models.job import main as fine_tune
from benchmarks.models.slopes import slopes
from benchmarks.work import MODELS, OPTIMIZERS, prepare

ROOT = Path(__file__).resolve().parents[1]


def test_the_quick_benchmark_runs_what_is_installed_and_names_what_is_not(tmp_path: Path) -> None:
    chosen = ["ortpipe", "`ortpipe` command", "Scan by hand", "JAX", "scikit-learn MLP"]
    report = tmp_path / "table.md"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--threads", "1", "--models", "digits"]
    command += ["--optimizers", "adam", "--output", str(report), "--peers", *chosen]
    done = run(command, cwd=ROOT, text=True)
    assert done.returncode == 0, done.stderr
    text = report.read_text()
    [row] = [line for line in text.splitlines() if line.startswith("| digits MLP 64→100→10 (64) | adam |")]
    assert "s to weights on disk" in text
    assert "| Scan by hand | digits MLP 64→100→10, adam: µs per step | ≥ 0.91× |" in text
    absent = [line for line in text.splitlines() if line.startswith("absent: ")]
    assert absent == ["absent: JAX"] or "JAX" in row or row.count("|") == 7


def test_a_peer_that_computes_something_else_is_not_timed() -> None:
    check({"ortpipe": [2.0, 1.0, 0.5], "other": [2.0001, 1.0, 0.5]})
    with pytest.raises(SystemExit, match="other does not compute what ortpipe does"):
        check({"ortpipe": [2.0, 1.0, 0.5], "other": [2.0, 1.1, 0.5]})


def test_each_peer_gets_the_first_interpreter_that_has_what_it_needs() -> None:
    here, there = {"onnx": "1", "onnxruntime": "1", "scikit-learn": "1"}, {"onnx": "1", "scikit-learn": "1", "jax": "1"}
    chosen = entrants(["here", "there"], [here, {**there, "optax": "1"}])
    assert chosen == {"Scan by hand": "here", "scikit-learn MLP": "here", "SGDRegressor": "here", "JAX": "there"}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_every_piece_of_work_is_written_for_all_peers_alike(tmp_path: Path, model: str, optimizer: str) -> None:
    arguments = prepare(tmp_path, MODELS[model], optimizer)
    assert {p.name for p in tmp_path.iterdir()} == {
        "job", "model.onnx", "problem.json", "rows.npz", "train.npz", "weights.npz",
    }  # fmt: skip
    assert f"train/optimizer={optimizer}" in arguments


def test_every_peer_has_its_script() -> None:
    scripts = {peer.script for peer in PEERS} - {"command"}
    assert {p.stem for p in (ROOT / "benchmarks" / "peers").glob("*.py")} == scripts | {"plain"}


def test_every_deliberate_difference_from_the_earlier_libraries_is_a_row_of_its_page() -> None:
    page = (ROOT / "docs" / "earlier.md").read_text()
    rows = [line.split(" | ")[0].removeprefix("| ") for line in page.splitlines()]
    assert [why for why in DELIBERATE if why not in rows] == []


def test_a_test_of_an_earlier_library_that_does_not_end_as_listed_fails() -> None:
    name = "onnxcustom/test_data_loader/test_ort_data_loader_101"
    ends = {"AssertionError: 1 != 5": PURPOSE, "KeyError: 5": FAILED}
    assert {said: Result(name, "failed", said, 0.0).verdict()[0] for said in ends} == ends
    assert Result(name, "passed", "", 0.0).verdict()[0] == FAILED
    assert Result("onnxcustom/test_x/test_y", "passed", "", 0.0).verdict()[0] == PASSED
    assert Result("onnxcustom/test_x/test_y", "skipped", "Skipped: no GPU", 0.0).verdict()[0] == FAILED


def test_files_that_hold_nothing_of_an_expression_are_not_run(tmp_path: Path) -> None:
    file = tmp_path / "test_small.py"
    file.write_text(SMALL)
    chosen = {"": True, "test_rate": True, "RATE and x": True, "small": True, "not rate": True, "loss or nan": False}
    assert {expression: may_match(expression, file) for expression in chosen} == chosen


def test_a_checkout_of_an_earlier_library_is_rewritten_run_and_judged(tmp_path: Path) -> None:
    tests = tmp_path / "checkout" / "_unittests" / "ut_training"
    tests.mkdir(parents=True)
    (tmp_path / "checkout" / "onnxcustom").mkdir()
    (tests / "test_small.py").write_text(SMALL)
    command = [sys.executable, "-m", "benchmarks.earlier", str(tmp_path / "checkout"), "--limit", "5"]
    done = run(command, cwd=ROOT, text=True)
    assert done.returncode == 1, done.stderr
    assert "| onnxcustom/test_small/test_rate | passed |" in done.stdout
    assert "| onnxcustom/test_small/test_slow | FAILED | TimeoutError: 5 s have passed |" in done.stdout
    assert done.stdout.endswith("1 passed, 0 deliberate difference, 0 needs what is gone, 1 FAILED\n")


SMALL = """
import time
from pyquickhelper.pycode import ExtTestCase
from onnxcustom.training.sgd_learning_rate import (
    LearningRateSGD)

class TestSmall(ExtTestCase):
    def test_rate(self):
        self.assertGreater(len(list(LearningRateSGD().loop())), 1)

    def test_slow(self):
        time.sleep(60)
"""


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
    monkeypatch.setattr("benchmarks.models.__main__.subprocess.run", lambda *a, **k: started.append(a))
    monkeypatch.setattr("benchmarks.models.__main__.judged", lambda *a: None)
    tried(entry, tmp_path, tmp_path, Path(sys.executable), keep=True)
    assert len(started) == runs


def test_every_file_of_the_benchmark_is_one_of_a_version_with_data_of_its_kind() -> None:
    listed = entries()
    assert len({e.name for e in listed}) == len(listed) >= 24
    assert len({e.package for e in listed if e.refused is None}) >= 12
    assert [e.name for e in listed if "==" not in e.package or not hasattr(data, e.data)] == []
