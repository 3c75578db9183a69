from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlflow
import numpy as np
import onnx
import pytest
from command import ortpipe
from mlflow import MlflowClient

from ortpipe.app.commands.sync import run as sync
from ortpipe.app.tracking.model import register_run
from ortpipe.app.tracking.recorders.mlflow import Mlflow
from ortpipe.errors import ConfigError, TrackingError
from ortpipe.runtime.session import Session


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
def target(world: Path) -> Iterator[Mlflow]:
    uri, before = f"sqlite:///{world}/outputs/mlflow.db", mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    yield Mlflow(uri, register="diabetes")
    mlflow.set_tracking_uri(before)


def test_the_registered_model_predicts_what_the_newest_runs_model_does(world: Path, target: Mlflow) -> None:
    rows = np.random.default_rng(0).normal(size=(7, 10)).astype(np.float32)
    predicted = mlflow.pyfunc.load_model("models:/diabetes@champion").predict(rows)
    _, newest = sorted(world.glob("outputs/runs/*/*"))
    session = Session(onnx.load(newest / "model.onnx"))
    [expected] = session.run({"X": rows}, session.outputs[:1])
    np.testing.assert_array_equal(predicted[session.outputs[0]], expected)
    versions = MlflowClient(target.tracking_uri).search_model_versions("name = 'diabetes'")
    assert sorted(int(v.version) for v in versions) == [1, 2]


def test_recording_again_registers_nothing_twice_and_another_name_once(world: Path, target: Mlflow) -> None:
    older, newer = sorted(world.glob("outputs/runs/*/*"))
    sync([str(older), str(newer), "--trust"])  # their folders alone say that they are registered
    (older / "mlflow.json").unlink()
    sync([str(older), "recorder.register=other", "recorder.alias=first"])
    sync([str(older), "recorder.register=other", "recorder.alias=first"])
    client = MlflowClient(target.tracking_uri)
    assert len(client.search_model_versions("name = 'diabetes'")) == 2
    [version] = client.search_model_versions("name = 'other'")
    assert client.get_model_version_by_alias("other", "first").version == version.version
    assert client.get_run(version.run_id).data.params["train.epochs"] == "2"


def test_of_a_sweep_only_the_best_run_is_registered_and_once(world: Path, target: Mlflow) -> None:
    jobs = ("-m", "experiment=linear_regression", "train.epochs=1,2", "recorder.register=best")
    done = ortpipe(*jobs, "recorder.experiment=sweep", cwd=world)
    assert done.returncode == 0, done.stderr
    client = MlflowClient(target.tracking_uri)
    experiment = client.get_experiment_by_name("sweep")
    [best] = client.search_runs([experiment.experiment_id], "params.`train.epochs` = '2'")
    [version] = client.search_model_versions("name = 'best'")
    assert version.run_id == best.info.run_id
    named = Mlflow(target.tracking_uri, register="best")
    assert register_run(named, best.info.run_id) == register_run(named, best.info.run_id) == "1"
    assert client.get_model_version_by_alias("best", "champion").run_id == best.info.run_id
    nothing = client.create_run(experiment.experiment_id)
    with pytest.raises(TrackingError, match="has a model"):
        register_run(named, nothing.info.run_id)


@pytest.mark.parametrize("wrong", [{"register": "a/b"}, {"register": ""}, {"register": "a", "alias": "latest"}])
def test_names_that_the_registry_refuses_are_refused_before_anything_else(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"^(register|alias) must be"):
        Mlflow("sqlite:///nowhere.db", **wrong)
