from __future__ import annotations

import json
from pathlib import Path

import mlflow
import numpy as np
import onnx
import pytest
from command import ortpipe
from mlflow import MlflowClient
from mlflow.models import Model
from sklearn.linear_model import LinearRegression

from ortpipe.app.commands.sync import run as sync
from ortpipe.app.run.record import COMMAND, FINISHED, RunRecord
from ortpipe.app.tracking.mlflow_run import MlflowRun
from ortpipe.app.tracking.model import example_of, register_run, save, schema
from ortpipe.app.tracking.recorders.mlflow import Mlflow
from ortpipe.errors import ConfigError, TrackingError
from ortpipe.pipeline.events import RunFinished
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.stage import convert


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where two runs registered their models, one after the other, under one name."""
    folder = tmp_path_factory.mktemp("registry")
    for epochs in (2, 5):
        settings = ("experiment=linear_regression", f"train.epochs={epochs}", "recorder.register=diabetes")
        done = ortpipe(*settings, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def target(world: Path) -> Mlflow:
    uri = f"sqlite:///{world}/outputs/mlflow.db"
    mlflow.set_tracking_uri(uri)
    return Mlflow(uri, register="diabetes")


def test_the_registered_model_predicts_what_the_newest_runs_model_does(world: Path, target: Mlflow) -> None:
    rows = np.random.default_rng(0).normal(size=(7, 10)).astype(np.float32)
    predicted = mlflow.pyfunc.load_model("models:/diabetes@champion").predict(rows)
    _, newest = sorted(world.glob("outputs/runs/*/*"))
    session = Session(onnx.load(newest / "model.onnx"))
    [expected] = session.run({"X": rows}, session.outputs[:1])
    np.testing.assert_array_equal(predicted[session.outputs[0]], expected)
    versions = MlflowClient(target.tracking_uri).search_model_versions("name = 'diabetes'")
    assert sorted(int(v.version) for v in versions) == [1, 2]


def test_recording_again_registers_nothing_twice_and_another_name_once(
    world: Path, target: Mlflow, capsys: pytest.CaptureFixture[str]
) -> None:
    older, newer = sorted(world.glob("outputs/runs/*/*"))
    client = MlflowClient(target.tracking_uri)
    champion = client.get_model_version_by_alias("diabetes", "champion").version
    sync([str(older), str(newer), "--trust"])  # their folders alone say that they are registered
    assert "registered" not in capsys.readouterr().out
    (older / "mlflow.json").unlink()
    sync([str(older), "--trust"])  # late, and again
    late = next(v for v in client.search_model_versions("name = 'diabetes'") if v.version != champion)
    said = (
        f"registered     diabetes version {late.version}; champion stays version {champion}, of a run that began later"
    )
    assert said in capsys.readouterr().out
    assert client.get_model_version_by_alias("diabetes", "champion").version == champion
    sync([str(older), "recorder.register=other", "recorder.alias=first"])
    sync([str(older), "recorder.register=other", "recorder.alias=first"])
    assert capsys.readouterr().out.count("registered     other version 1, as first") == 1
    assert len(client.search_model_versions("name = 'diabetes'")) == 2
    [version] = client.search_model_versions("name = 'other'")
    assert client.get_model_version_by_alias("other", "first").version == version.version
    run = client.get_run(version.run_id)
    assert run.data.params["train.epochs"] == "2"
    assert version.description == run.data.tags["mlflow.note.content"]
    logged = client.get_logged_model(version.tags["ortpipe.model_id"])
    assert logged.source_run_id == version.run_id
    assert {"name": "other", "version": version.version} in json.loads(logged.tags["mlflow.modelVersions"])
    requirements = Path(logged.artifact_location.removeprefix("file://"), "requirements.txt").read_text().split()
    assert [line.partition("==")[0] for line in requirements] == ["mlflow", "onnx", "onnxruntime", "numpy"]
    assert all(line.count("==") == 1 for line in requirements)


def test_of_a_sweep_only_the_best_run_is_registered_and_once(world: Path, target: Mlflow) -> None:
    jobs = ("-m", "experiment=linear_regression", "train.epochs=1,2", "recorder.register=best")
    done = ortpipe(*jobs, "recorder.experiment=sweep", cwd=world)
    assert done.returncode == 0, done.stderr
    client = MlflowClient(target.tracking_uri)
    experiment = client.get_experiment_by_name("sweep")
    [best] = client.search_runs([experiment.experiment_id], "params.`train.epochs` = '2'")
    [version] = client.search_model_versions("name = 'best'")
    command = best.data.tags[COMMAND]  # of the job alone
    assert command.endswith(" recorder.register=null")
    assert "recorder.register=best" not in command
    assert version.run_id == best.info.run_id
    named = Mlflow(target.tracking_uri, register="best")
    said = {register_run(named, best.info.run_id) for _ in range(2)}
    assert said == {"best version 1, as champion"}
    assert client.get_model_version_by_alias("best", "champion").run_id == best.info.run_id
    nothing = client.create_run(experiment.experiment_id)
    with pytest.raises(TrackingError, match="must have a logged model"):
        register_run(named, nothing.info.run_id)


def test_a_model_that_cannot_be_registered_ends_the_run_with_an_error_behind_its_results(
    world: Path, target: Mlflow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*given: object) -> str:
        raise OSError("No space left on device")

    record = RunRecord(world / "unregistered", "mine", {COMMAND: "ortpipe"})
    recording = Mlflow(target.tracking_uri, register="never")(record, {})
    monkeypatch.setattr(MlflowRun, "_metrics", full)
    record.folder.mkdir()
    record.end(FINISHED)
    artifact = convert(LinearRegression().fit(np.eye(3), [1.0, 2.0, 3.0]))
    recording(RunFinished(artifact))
    command = f"ortpipe sync {record.folder} recorder.register=never"
    assert command in capsys.readouterr().err
    with pytest.raises(TrackingError, match="No space left on device") as caught:
        recording.check()
    assert command in str(caught.value)


FREE = """<ir_version: 9, opset_import: ["" : 18]>
free (float[N, C, H, W] x) => (float[N, 4, P, Q] y) <float[4, 3, 5, 5] w = {0}> { y = Conv(x, w) }"""


def test_an_example_has_the_size_of_real_rows_and_a_signature_says_which_sizes_are_free(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = onnx.parser.parse_model(FREE.replace("{0}", "{" + ", ".join(["0.5"] * 300) + "}"))
    example = example_of(model, {"x": [3, 8, 9]})
    assert example is not None
    assert example["x"].shape == (2, 3, 8, 9)
    [spec] = schema(model.graph.input).inputs
    assert (spec.name, spec.type, spec.shape) == ("x", np.float32, (-1, -1, -1, -1))
    [spec] = schema(model.graph.output).inputs
    assert spec.shape == (-1, 4, -1, -1)
    assert example_of(model, {}) is None  # a kernel of 5×5 takes no single pixel of one channel
    assert "no input example" in capsys.readouterr().err


def test_requirements_are_pinned_to_the_installed_versions(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(FREE.replace("{0}", "{" + ", ".join(["0.5"] * 300) + "}"))
    save(model, tmp_path / "model", Model(), {"x": [3, 8, 9]}, {})
    pinned = (tmp_path / "model" / "requirements.txt").read_text().split()
    assert [line.partition("==")[0] for line in pinned][-1] == "numpy"
    assert all("==" in line for line in pinned)


@pytest.mark.parametrize("wrong", [{"register": "a/b"}, {"register": ""}, {"register": "a", "alias": "latest"}])
def test_names_that_the_registry_refuses_are_refused_before_anything_else(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"^(register|alias) must be"):
        Mlflow("sqlite:///nowhere.db", **wrong)
