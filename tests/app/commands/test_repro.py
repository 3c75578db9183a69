"""ortpipe repro, as a user calls it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from command import Run, ortpipe

SMALL = ("experiment=linear_regression", "train.epochs=2")
STAGES = ["convert", "add_loss", "penalty", "derive", "train", "evaluate"]
Repro = Callable[..., CompletedProcess[str]]


@pytest.fixture
def repro(tmp_path: Path) -> Repro:
    return lambda *arguments: ortpipe("repro", *map(str, arguments), cwd=tmp_path)


def same(done: CompletedProcess[str]) -> list[str]:
    return [line.split()[0] for line in done.stdout.splitlines() if " same  " in line]


def edit(folder: Path, stage: int, **values: object) -> None:
    """Change what a run's record says of a stage."""
    lock = json.loads((folder / "run.json").read_text())
    lock["stages"][stage].update(values)
    (folder / "run.json").write_text(json.dumps(lock))


def test_a_run_is_made_again_from_its_record_in_mlflow_alone(tmp_path: Path, repro: Repro) -> None:
    first = ortpipe(*SMALL, cwd=tmp_path)
    run_id = next(line.split()[-1] for line in first.stdout.splitlines() if line.startswith("MLflow run"))
    shutil.rmtree(tmp_path / "outputs" / "runs")
    shutil.rmtree(tmp_path / "outputs" / "cache")
    done = repro(run_id)
    assert (done.returncode, done.stderr.count("warning")) == (0, 0), done.stderr
    assert same(done) == STAGES
    assert done.stdout.splitlines()[-1].startswith("reproduced: 6 stages and 24 losses")  # 22 steps, 2 epochs
    assert not (tmp_path / "outputs" / "cache").exists()
    missing = repro("0" * 32)
    assert (missing.returncode, "must have a run of this id" in missing.stderr) == (1, True)


def test_a_run_of_a_model_file_is_made_again_when_the_file_is_gone(
    tmp_path: Path, cli: Run, only_run: Callable[[], Path], repro: Repro
) -> None:
    assert cli(*SMALL).returncode == 0
    first, other = tmp_path / "model.onnx", tmp_path / "other" / "model.onnx"
    other.parent.mkdir()
    shutil.copy(only_run() / "model.onnx", other)
    shutil.copy(only_run() / "stages" / "1_convert" / "model.onnx", first)
    shutil.rmtree(tmp_path / "outputs")
    source = ("convert=onnx", "convert.source.path=model.onnx", "convert.init={path: other}")
    made = cli("~experiment", "name=mine", "data=diabetes", *source, "add_loss=l2")
    assert made.returncode == 0, made.stderr
    assert "takes 2 weights from other" in made.stderr
    first.unlink()
    other.unlink()
    assert same(repro(only_run())) == STAGES


def test_other_data_are_told(tmp_path: Path, cli: Run, only_run: Callable[[], Path], repro: Repro) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 4))
    np.savez(tmp_path / "rows.npz", X=rows, y=rows.sum(axis=1))
    command = ("data=npz", "data.source.path=rows.npz", "data.split.test=0.25")
    assert cli(*SMALL, *command).returncode == 0
    assert same(repro(only_run())) == STAGES
    np.savez(tmp_path / "rows.npz", X=rows, y=rows.sum(axis=1) + 1)
    done = repro(only_run())
    assert (done.returncode, same(done)) == (1, [])
    assert "convert differs" in done.stderr
    assert "data: data was " in done.stderr


def test_another_config_code_or_number_is_told_at_the_first_stage_that_differs(
    tmp_path: Path, cli: Run, only_run: Callable[[], Path], repro: Repro
) -> None:
    assert cli(*SMALL).returncode == 0
    folder = only_run()
    other = tmp_path / "other"
    assert cli(*SMALL, "train.optimizer.lr=0.5", f"hydra.run.dir={other}").returncode == 0

    lock, stages = json.loads((folder / "run.json").read_text()), json.loads((other / "run.json").read_text())
    shutil.rmtree(folder / "stages" / "5_train")
    shutil.copytree(other / "stages" / "5_train", folder / "stages" / "5_train")
    edit(folder, 4, output=stages["stages"][4]["output"])
    done = repro(folder)
    assert (done.returncode, same(done)) == (1, STAGES[:4])
    assert "train differs" in done.stderr
    assert "numbers: digest was" in done.stderr
    assert "losses/step: " in done.stderr
    assert "first at 1" in done.stderr  # the first loss is of the same weights

    edit(folder, 4, parts={**lock["stages"][4]["parts"], "version": 99})
    assert "code: version was 99, is " in repro(folder).stderr
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("batch_size: 32", "batch_size: 8"))
    assert "config: train.batch_size was 32, is 8" in repro(folder).stderr


def test_other_packages_are_told_first(cli: Run, only_run: Callable[[], Path], repro: Repro) -> None:
    assert cli(*SMALL).returncode == 0
    lock = json.loads((only_run() / "run.json").read_text())
    parts = lock["stages"][5]["parts"]
    edit(only_run(), 5, parts={**parts, "packages": {**parts["packages"], "scipy": "0.1"}})
    done = repro(only_run())
    assert done.stderr.splitlines()[0].startswith("warning: scipy was 0.1, is ")
    assert (done.returncode, same(done)) == (0, STAGES)


def test_what_is_no_run_is_refused(repro: Repro) -> None:
    done = repro("nowhere")
    assert (done.returncode, "named by its folder, or by its MLflow id" in done.stderr) == (1, True)


def test_a_run_is_made_again_with_its_own_config_only(cli: Run, only_run: Callable[[], Path], repro: Repro) -> None:
    assert cli(*SMALL).returncode == 0
    done = repro(only_run(), "train.epochs=3")
    assert (done.returncode, "with its own config" in done.stderr) == (1, True)
