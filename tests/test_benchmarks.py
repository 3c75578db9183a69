from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.contest import PEERS, check, entrants
from benchmarks.earlier.__main__ import FAILED, PASSED, PURPOSE, Result, may_match
from benchmarks.earlier.known import DELIBERATE
from benchmarks.models import data
from benchmarks.models.__main__ import Entry, entries, judged, overrides
from benchmarks.models.job import main as fine_tune
from benchmarks.work import MODELS, OPTIMIZERS, prepare

ROOT = Path(__file__).resolve().parents[1]


def test_the_quick_benchmark_runs_what_is_installed_and_names_what_is_not(tmp_path: Path) -> None:
    chosen = ["ortpipe", "`ortpipe` command", "Scan by hand", "JAX", "scikit-learn MLP"]
    report = tmp_path / "table.md"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--threads", "1", "--models", "digits"]
    command += ["--optimizers", "adam", "--output", str(report), "--peers", *chosen]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=200)
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


def test_every_deliberate_difference_from_the_earlier_libraries_is_a_row_of_the_readme() -> None:
    rows = [line.split(" | ")[0].removeprefix("| ") for line in (ROOT / "README.md").read_text().splitlines()]
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
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.earlier", str(tmp_path / "checkout"), "--limit", "5"],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
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
    assert "float64" in outcome.cells["gradients"]
    refused = dataclasses.replace(entry, refused="trees")
    assert judged(refused, path, tmp_path, Path(sys.executable)).wrong == ["trains, though it should be refused"]


def test_every_file_of_the_benchmark_is_one_of_a_version_with_data_of_its_kind() -> None:
    listed = entries()
    assert len({e.name for e in listed}) == len(listed) >= 24
    assert len({e.package for e in listed if e.refused is None}) >= 12
    assert [e.name for e in listed if "==" not in e.package or not hasattr(data, e.data)] == []
