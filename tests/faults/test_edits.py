"""What a run was started with is what it is of, whatever is edited while it goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import yaml
from command import ortpipe
from faults.conftest import outputs_of
from faults.processes import end, start, until
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge

from ortpipe import convert

X, Y = load_diabetes(return_X_y=True)
EXPERIMENT = """# @package _global_
defaults:
  - override /data: function
  - override /add_loss: l2
  - override /recorder: none
data: {source: {function: "mine:rows"}}
convert: {source: {estimator: sklearn.linear_model.Ridge}}
train: {epochs: 3}
"""
ROWS = """import os, time
import numpy as np

def rows():
    open("reading", "w").close()
    while not os.path.exists("go on"):
        time.sleep(0.01)
    X = np.random.default_rng(0).normal(size=(60, 3))
    return X, X @ [1.0, 2.0, 3.0]
"""


def test_an_experiment_and_a_function_that_are_edited_are_of_the_next_run(tmp_path: Path) -> None:
    conf = tmp_path / "conf" / "experiment"
    conf.mkdir(parents=True)
    (conf / "mine.yaml").write_text(EXPERIMENT)
    (tmp_path / "mine.py").write_text(ROWS)
    command = ("--config-dir", "conf", "experiment=mine")
    process = start(tmp_path, *command)
    while not (tmp_path / "reading").exists():
        assert process.poll() is None, end(process)
    (conf / "mine.yaml").write_text(EXPERIMENT.replace("epochs: 3", "epochs: 4"))
    (tmp_path / "mine.py").write_text(ROWS.replace("3.0]", "-3.0]"))
    (tmp_path / "go on").touch()
    code, said = end(process)
    assert code == 0, said
    [folder] = tmp_path.glob("outputs/runs/*/*")
    assert yaml.safe_load((folder / "config.yaml").read_text())["train"]["epochs"] == 3
    first = outputs_of(tmp_path)

    done = ortpipe(*command, cwd=tmp_path)  # the edited files
    assert done.returncode == 0, done.stderr
    second = outputs_of(tmp_path)
    assert first[0] == second[0] == []

    (conf / "mine.yaml").write_text(EXPERIMENT)  # and back: what the first run computed is what it said it would
    (tmp_path / "mine.py").write_text(ROWS)
    done = ortpipe(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert outputs_of(tmp_path) == (["convert", "add_loss", "penalty", "derive", "train", "evaluate"], first[1])


def save(folder: Path, scale: float, sign: float) -> None:
    """Write rows and a model, in place."""
    table = np.column_stack([X, sign * Y])
    names = [f"x{i}" for i in range(10)]
    np.savetxt(folder / "rows.csv", table, delimiter=",", header=",".join([*names, "y"]), comments="", fmt="%.17g")
    onnx.save(convert(Ridge().fit(X, scale * Y)).model, folder / "a.onnx")


def test_rows_and_a_model_that_are_edited_while_training_goes_on_are_of_the_next_run(tmp_path: Path) -> None:
    save(tmp_path, 1.0, 1.0)
    sources = (
        "data=csv",
        "data.source.path=rows.csv",
        "data.source.label=y",
        "data.source.inputs={X: null}",
        "convert=onnx",
        "convert.source.path=a.onnx",
    )
    command = ("~experiment", *sources, "add_loss=l2", "recorder=none", "train.optimizer.lr=0.001", "name=edited")
    process = start(tmp_path, *command, "train.epochs=1000")
    until(process, "epoch 100/1000")
    save(tmp_path, 2.0, -1.0)
    code, said = end(process)
    assert code == 0, said
    first = outputs_of(tmp_path)
    done = ortpipe(*command, "train.epochs=1000", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert outputs_of(tmp_path)[0] == []
    save(tmp_path, 1.0, 1.0)
    done = ortpipe(*command, "train.epochs=1000", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert outputs_of(tmp_path) == (["convert", "add_loss", "penalty", "derive", "train", "evaluate"], first[1])
