"""Runs and sweeps from Python."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest

import ortpipe
from ortpipe.errors import ConfigError, OrtpipeError, TrackingError, TrainError

LINEAR = ("experiment=linear_regression", "recorder=none", "paths.cache=null", "train.epochs=3")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return ortpipe.run(*LINEAR, f"paths.outputs={folder}", f"hydra.run.dir={folder}/one")


def test_a_run_that_python_started_is_read_back(run):
    assert (run.status, run.record.stage_folders[-1]) == ("FINISHED", "6_evaluate")
    assert run.config["train"]["epochs"] == 3
    assert run.metrics["r2"]["trained"] > run.metrics["r2"]["before"]
    epochs = run.losses.query("kind == 'train'")
    assert epochs["number"].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(epochs["value"], run.artifact("train").tensors["losses/train"])
    assert [o.name for o in run.model.graph.output] == [o.name for o in run.artifact("evaluate").model.graph.output]
    page = run._repr_html_()
    assert "<th>r2</th>" in page
    assert f"{run.metrics['r2']['trained']:.4g}" in page


def test_its_figures_are_matplotlibs(run):
    figure = run.plot("losses")
    [axes] = figure.axes
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), run.artifact("train").tensors["losses/train"])
    assert [axes.get_xlabel() for axes in run.plot("residuals").axes] == ["predicted"]
    with pytest.raises(ConfigError, match="Did you mean 'losses'"):
        run.plot("loses")


def test_a_run_says_that_another_one_took_its_folder(run, tmp_path):
    folder = shutil.copytree(run.folder, tmp_path / "copy")
    held = ortpipe.Run(folder)
    record = folder / "run.json"
    record.write_text(record.read_text().replace(held.record.id, "0" * 32))
    for read in ("losses", "config", "model"):
        with pytest.raises(TrackingError, match="another run in"):
            getattr(held, read)


def test_its_record_has_the_command_that_does_the_same(run):
    command = json.loads((run.folder / "run.json").read_text())["tags"]["ortpipe.command"]
    assert command.startswith("ortpipe experiment=linear_regression recorder=none paths.cache=null train.epochs=3")
    assert ortpipe.Run(run.folder).record.id == run.record.id


def test_what_is_no_run_or_stage_is_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="named by its folder"):
        ortpipe.Run(tmp_path)
    with pytest.raises(ConfigError, match="Did you mean 'train'"):
        run.artifact("trian")
    with pytest.raises(TrackingError, match=r"ortpipe\.Run\(folder\)"):
        ortpipe.Sweep(run.folder)
    with pytest.raises(TrackingError, match="Name a folder that a run wrote"):
        ortpipe.Sweep(tmp_path)


def test_a_run_that_failed_says_where_and_one_that_takes_its_folder_says_so(tmp_path, capsys, monkeypatch):
    folder = f"hydra.run.dir={tmp_path}/r"
    with pytest.raises(TrainError, match="finite"):
        ortpipe.run(*LINEAR, "train.epochs=60", "train.optimizer.lr=100", folder)
    with pytest.raises(ConfigError, match="got: train; it failed in train"):
        ortpipe.Run(tmp_path / "r").losses  # noqa: B018
    assert "replaces" not in capsys.readouterr().err
    monkeypatch.setattr("ortpipe.app.pulse.EVERY", 0.01)
    ortpipe.run(*LINEAR, folder)
    lines = capsys.readouterr().err.splitlines()
    for step in ("preparing the run", "writing the results of evaluate"):
        assert any(re.fullmatch(rf"  {step}, \d+ s so far", line) for line in lines)
    [said] = [line for line in lines if line.startswith("replaces")]
    assert said.startswith("replaces the run of 20")
    assert said.endswith(f"in {tmp_path}/r (failed)")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((pd.DataFrame({"a": [1.0]}),), "got: DataFrame"),
        (("-m", *LINEAR), r"start a sweep from the command line(.|\n)*got: -m"),
        (("train.epochs=2,5",), r"got: train\.epochs=2,5(.|\n)*ortpipe\.Sweep\(FOLDER\)"),
    ],
)
def test_rows_and_sweeps_are_no_words_of_a_run(words, said):
    with pytest.raises(ConfigError, match=said):
        ortpipe.run(*words)


def test_each_is_shown_in_a_line(run):
    artifact = run.artifact("train")
    assert repr(artifact).startswith("Artifact(from the stage train; task regression; inputs X; outputs prediction; ")
    assert repr(artifact.facts).startswith("Facts(task='regression', inputs=['X'], outputs=['prediction'], ")
    assert "lineage" not in repr(artifact.facts)
    part = ortpipe.Rows({"X": np.zeros((3, 2)), "t": np.zeros((3, 4, 5))}, [1, 2, 3])
    shown = "Data(3 train, 3 test rows of X [2], t [4, 5] → label [])"
    assert repr(ortpipe.Data(part, test=part)) == shown


@pytest.mark.parametrize(("word", "said"), [("train.epoch=3", "epochs"), ("experiment=linaer", "linear")])
def test_a_word_that_the_command_line_refuses_is_refused(word, said, tmp_path):
    with pytest.raises(OrtpipeError, match=said):
        ortpipe.run(word, f"hydra.run.dir={tmp_path}/r")
    assert not (tmp_path / "r").exists() or not (tmp_path / "r" / "run.json").exists()


def test_a_sweep_is_read_back_as_a_table(cli, tmp_path):
    words = (
        "train.epochs=1,3",
        "objective=r2",
        "data.split.validation=0.2",
        f"hydra.sweep.dir={tmp_path}/s",
        *LINEAR[:1],
        *LINEAR[2:3],
        "-m",
    )
    assert cli(*words).returncode == 0
    sweep = ortpipe.Sweep(tmp_path / "s")
    table = sweep.table()
    assert table["train.epochs"].tolist() == [1, 3]
    assert [job.config["train"]["epochs"] for job in sweep.jobs] == [1, 3]
    assert table["best"].tolist() == (table["validation/r2"] == table["validation/r2"].max()).tolist()
    assert sweep.best.metrics["r2"]["trained"] == table.loc[table["best"], "test/r2"].item()
    assert "train.epochs" in sweep._repr_html_()
    assert [axes.get_xlabel() for axes in sweep.plot().axes] == ["epochs"]
