from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command import run
from sample import ALL

from benchmarks.__main__ import main
from benchmarks.contest import PEERS, check, entrants
from benchmarks.work import MODELS, OPTIMIZERS, prepare

ROOT = Path(__file__).resolve().parents[1]


def test_the_quick_benchmark_runs_what_is_installed_and_names_what_is_not(tmp_path: Path) -> None:
    some = ["ortpipe", "C with a BLAS", "`ortpipe` command", "Scan by hand", "onnxsim"]
    chosen = [peer.name for peer in PEERS] if ALL else some
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
    assert ALL or absent == ["absent: onnxsim"] or row.count("|") == 7


ALONE = [("cpu", ["Scan by hand"], "ortpipe"), ("cuda", ["ortpipe"], "ortpipe, engine=xla")]


@pytest.mark.parametrize(("device", "peers", "base"), ALONE)
def test_a_contest_without_the_peer_that_the_others_are_held_against_does_not_start(
    device: str, peers: list[str], base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CLOCK", "DEVICE"):  # main sets them for the peers
        monkeypatch.setenv(f"BENCHMARKS_{name}", "")
    with pytest.raises(SystemExit, match=f"held against '{base}', which must run"):
        main(["--device", device, "--quick", "--peers", *peers])


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
