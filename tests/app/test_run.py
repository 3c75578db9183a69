"""The main job as a user runs it: experiments, run folder, determinism, sweeps, interruptions."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from command import ROOT, Popen, Run, on_terminal, ortpipe, run
from pyarrow import parquet
from sklearn.datasets import load_diabetes, load_digits

from ortpipe import load_artifact
from ortpipe.runtime.session import Session
from ortpipe.stages.train.optimizers import OPTIMIZERS


@pytest.mark.usefixtures("fitted_digits")
def test_the_run_folder_holds_everything(cli: Callable, only_run: Callable) -> None:
    done = cli("train.epochs=3")
    assert done.returncode == 0, done.stderr
    folder = only_run()
    names = ["1_convert", "2_add_loss", "3_penalty", "4_derive", "5_train", "6_evaluate"]
    assert sorted(p.name for p in (folder / "stages").iterdir()) == names
    for stage in (folder / "stages").iterdir():
        artifact = load_artifact(stage)
        onnx.checker.check_model(artifact.model, full_check=True)
        assert "=>" in (stage / "model.txt").read_text()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["train"]["epochs"] == 3
    environment = json.loads((folder / "environment.json").read_text())
    assert [environment["onnxruntime"], environment["onnxruntime-training"]].count("not installed") == 1
    assert {p.name for p in (folder / "figures").iterdir()} == {"losses.png", "confusion.png", "curves.png"}
    for picture in (folder / "figures").iterdir():
        assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(folder / "model.onnx") in done.stdout


@pytest.mark.usefixtures("fitted_digits")
def test_the_trained_model_predicts_labels_by_itself(cli: Callable, only_run: Callable) -> None:
    cli("train.epochs=10")
    X, y = load_digits(return_X_y=True)
    session = Session(onnx.load(only_run() / "model.onnx"))
    [label] = session.run({"X": X.astype(np.float32)}, ["label"])
    assert (label == y).mean() > 0.97


IN_TURN = """
import json, sys
from ortpipe.app.cli import main

for line in json.loads(sys.argv[1]):
    sys.argv = ["ortpipe", *line]
    main()
"""


def test_the_same_config_gives_the_same_bytes_in_every_artifact_across_processes(tmp_path: Path) -> None:
    """The rows of one run stream, those of the other do not."""
    load_diabetes(as_frame=True).frame.to_parquet(tmp_path / "patients.parquet", row_group_size=50)
    streamed = ("data=parquet", "data.source.path=../patients.parquet", "data.source.label=target")
    streamed += ("data.source.stream=true", "hydra.run.dir=streamed")
    lines = (  # no other test fits with max_iter=4: the record pickles a fit from their cache as other bytes
        ("recorder=none", "train.epochs=2", "convert.source.params.max_iter=4", "hydra.run.dir=whole"),
        ("recorder=none", "experiment=linear_regression", "train.epochs=3", *streamed),
    )
    contents = []
    for name, options in (("fork", {}), ("fresh", {"PYTHONHASHSEED": "1"})):  # of a process whose hash seed is drawn
        (tmp_path / name).mkdir()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **options}
        code = [sys.executable, "-c", IN_TURN, json.dumps(lines)]
        done = run(code, cwd=tmp_path / name, env=environment, text=True)
        assert done.returncode == 0, done.stderr
        folders = [tmp_path / name / kind / part for kind in ("whole", "streamed") for part in ("stages", "figures")]
        files = [p for folder in folders for p in sorted(folder.rglob("*")) if p.is_file()]
        files += sorted((tmp_path / name).glob("*/model.onnx"))
        contents.append({str(p.relative_to(tmp_path / name)): p.read_bytes() for p in files})
    assert contents[0].keys() == contents[1].keys()
    for name, content in contents[0].items():
        if (other := contents[1][name]) != content:
            at = next((at for at, (a, b) in enumerate(zip(content, other, strict=False)) if a != b), 0)
            assert content[at : at + 200] == other[at : at + 200], (name, content[max(0, at - 300) : at])
            assert len(content) == len(other), name


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    models = []
    for seed in ("0", "1"):
        choices = ("experiment=logistic_regression", "recorder=none", "train.epochs=1")
        ortpipe(*choices, f"seed={seed}", f"paths.outputs={tmp_path / seed}", cwd=tmp_path)
        [model] = (tmp_path / seed).glob("runs/*/*/model.onnx")
        models.append(model.read_bytes())
    assert models[0] != models[1]


@pytest.mark.usefixtures("fitted_digits")
def test_a_user_adds_experiments_and_options_from_any_folder(only_run: Callable, tmp_path: Path) -> None:
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "train" / "optimizer").mkdir(parents=True)
    (tmp_path / "mine" / "train" / "optimizer" / "slow.yaml").write_text("name: sgd\nlr: 0.001\n")
    (tmp_path / "mine" / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - digits\n  - override /train/optimizer: slow\ntrain:\n  epochs: 2\n"
        "  optimizer: {lr: 0.002}\n"
    )
    done = ortpipe("--config-dir", "mine", "experiment=mine", "recorder=none", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load((only_run() / "config.yaml").read_text())
    assert config["train"]["optimizer"] == {"name": "sgd", "lr": 0.002}
    assert config["name"] == "mine"


def test_help_and_cfg_answer(cli: Callable) -> None:
    assert f"train/optimizer: {', '.join(sorted(OPTIMIZERS))}" in " ".join(cli("--help").stdout.split())
    assert "hidden_layer_sizes" in cli("--cfg", "job").stdout


def test_a_reader_that_has_enough_ends_it_without_a_word(tmp_path: Path) -> None:
    command = f"{sys.executable} -m ortpipe --help | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("ortpipe trains ONNX models from config files.", "")


@pytest.mark.usefixtures("fitted_digits")
def test_the_console_recorder_prints_config_and_stages(cli: Callable) -> None:
    done = cli("recorder=console", "train.epochs=1")
    assert "train.optimizer.lr=0.003" in done.stdout
    assert "derive: " in done.stdout


BAR = ("train.epochs=40", "train.early_stop.monitor=accuracy", "train.early_stop.patience=null")


@pytest.mark.parametrize(
    ("columns", "last"),
    [
        (80, r"40/40 \|█+\| loss \S+ val \S+ accuracy \S+ rate 0.003 [\d,]+/s 00:00"),
        (120, r"epoch 40/40 \|█+\| loss \S+, validation \S+, accuracy \S+, rate 0.003, [\d,]+ steps/s, 00:00 left"),
    ],
)
def test_a_terminal_shows_one_bar_that_fits_it(columns: int, last: str, tmp_path: Path) -> None:
    code, text = on_terminal("recorder=none", *BAR, cwd=tmp_path, columns=columns)
    assert code == 0
    lines = re.split(r"[\r\n]+", text)  # each state of the bar is one
    bar = [line for line in lines if "/40 |" in line]
    assert re.fullmatch(last, bar[-1].strip())
    notes = ("data: ", "  trains ", "  scikit-learn fits it by ", "  penalty=auto: ")  # which a terminal wraps
    assert max(len(line) for line in lines if not line.startswith(notes)) <= columns
    assert "[5/6] train" in lines


@pytest.mark.usefixtures("fitted_digits")
def test_elsewhere_ten_plain_lines_say_the_same(cli: Callable) -> None:
    done = cli(*BAR)
    lines = [line for line in done.stderr.splitlines() if line.startswith("  epoch ")]
    assert len(lines) == 10
    form = r"  epoch 40/40: loss \S+, validation \S+, accuracy \S+, rate 0.003, [\d,]+ steps/s"
    assert re.fullmatch(form, lines[-1])
    assert "\r" not in done.stderr


def _interrupted(tmp_path: Path, number: int, ready: Callable[[], object], *arguments: str) -> tuple[int, str]:
    process = Popen(
        [sys.executable, "-m", "ortpipe", "recorder=none", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not ready():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    return process.returncode, error


@pytest.mark.usefixtures("fitted_digits")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_half_written_file(number: int, tmp_path: Path) -> None:
    def training() -> list[Path]:
        return list(tmp_path.glob("outputs/runs/*/*/stages/4_derive/artifact.json"))

    code, error = _interrupted(tmp_path, number, training, "train.epochs=1000000", "train.early_stop.patience=null")
    assert code == 128 + number
    assert "stopped" in error
    [folder] = tmp_path.glob("outputs/runs/*/*")
    assert sorted(p.name for p in (folder / "stages").iterdir()) == ["1_convert", "2_add_loss", "3_penalty", "4_derive"]
    assert [p for p in folder.rglob(".*") if p.name != ".hydra"] == []
    for stage in (folder / "stages").iterdir():
        load_artifact(stage)


def test_ctrl_c_stops_a_fit_of_scikit_learn_too(tmp_path: Path) -> None:
    def fitting() -> list[Path]:
        return list(tmp_path.glob("outputs/runs/*/*/environment.json"))

    params = ("convert.source.params.max_iter", "+convert.source.params.n_iter_no_change")
    code, error = _interrupted(tmp_path, signal.SIGINT, fitting, *(f"{p}=1000000" for p in params))
    assert code == 130
    assert "stopped" in error
    assert list(tmp_path.glob("outputs/runs/*/*/stages/*")) == []


@pytest.mark.usefixtures("fitted_digits")
def test_epochs_without_validation_leave_their_cells_empty(cli: Callable, only_run: Callable) -> None:
    done = cli("train.epochs=5", "train.validate_every=2", "train.early_stop.monitor=accuracy")
    assert done.returncode == 0, done.stderr
    rows = parquet.read_table(only_run() / "losses.parquet").to_pylist()
    for kind in ("validation", "accuracy"):
        known = [row["value"] is not None for row in rows if row["kind"] == kind]
        assert known == [False, True, False, True, True]
    assert ", accuracy 0." in done.stderr


def test_a_run_into_the_folder_of_another_leaves_nothing_of_it(cli: Run, tmp_path: Path) -> None:
    place = f"hydra.run.dir={tmp_path}/same"
    assert cli("experiment=linear_regression", "train.epochs=1", place).returncode == 0
    older = {path.name for path in (tmp_path / "same" / "figures").iterdir()}
    assert cli("experiment=logistic_regression", "train.epochs=1", place).returncode == 0
    newer = {path.name for path in (tmp_path / "same" / "figures").iterdir()}
    assert "predicted.png" in older - newer
    assert "predicted.png" not in (tmp_path / "same" / "report.md").read_text()


def test_the_version_is_our_own(cli: Run, tmp_path: Path) -> None:
    from importlib.metadata import version

    assert ortpipe("--version", cwd=tmp_path).stdout == f"ortpipe {version('ortpipe')}\n"
