"""Runs and sweeps from Python."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import ortpipe
from ortpipe.errors import ConfigError, OrtpipeError, TrackingError

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
    assert "<td>r2</td>" in page
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
    with pytest.raises(TrackingError, match="started"):
        ortpipe.Sweep(run.folder)


@pytest.mark.parametrize(("word", "said"), [("train.epoch=3", "epochs"), ("experiment=linaer", "linear")])
def test_a_word_that_the_command_line_refuses_is_refused(word, said, tmp_path):
    with pytest.raises(OrtpipeError, match=said):
        ortpipe.run(word, f"hydra.run.dir={tmp_path}/r")
    assert not (tmp_path / "r").exists() or not (tmp_path / "r" / "run.json").exists()


def test_a_sweep_is_read_back_as_a_table(cli, tmp_path):
    words = ("train.epochs=1,3", "objective=r2", f"hydra.sweep.dir={tmp_path}/s", *LINEAR[:1], *LINEAR[2:3], "-m")
    assert cli(*words).returncode == 0
    sweep = ortpipe.Sweep(tmp_path / "s")
    table = sweep.table()
    assert table["train.epochs"].tolist() == [1, 3]
    assert [job.config["train"]["epochs"] for job in sweep.jobs] == [1, 3]
    assert sweep.best.metrics["r2"]["trained"] == pytest.approx(table["r2"].max())
    assert "train.epochs" in sweep._repr_html_()
    assert [axes.get_xlabel() for axes in sweep.plot().axes] == ["epochs"]
