"""What MLflow holds after a run, read back from a real database; and what happens when it fails."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from command import ortpipe
from sklearn.datasets import load_digits

from ortpipe.app.run.checkpoint import read_checkpoint
from ortpipe.app.tracking.metrics import MOST_POINTS
from ortpipe.runtime.session import Session


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("world")
    watched = ("train.validate_every=7", "train.early_stop.monitor=accuracy")
    often = {"MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL": "0.2"}
    watched = (*watched, "recorder.system_metrics=true")
    done = ortpipe("train.epochs=60", "train.batch_size=16", *watched, cwd=folder, **often)
    assert done.returncode == 0, done.stderr
    return folder, done


@pytest.fixture(scope="module")
def client(world: tuple[Path, object]):  # type: ignore[no-untyped-def]
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{world[0]}/outputs/mlflow.db")


@pytest.fixture(scope="module")
def run(client):  # type: ignore[no-untyped-def]
    experiment = client.get_experiment_by_name("ortpipe")
    [found] = client.search_runs([experiment.experiment_id])
    return found


def test_the_run_is_finished_and_named_after_its_experiment(run) -> None:  # type: ignore[no-untyped-def]
    assert run.info.status == "FINISHED"
    assert run.data.tags["mlflow.runName"] == "digits"
    assert run.data.tags["ortpipe.seed"] == "0"
    assert len(run.data.tags["ortpipe.data"]) == 64


def test_every_config_value_is_a_param(run) -> None:  # type: ignore[no-untyped-def]
    assert run.data.params["train.optimizer.lr"] == "0.003"
    assert run.data.params["convert.source.params.hidden_layer_sizes"] == "[100]"
    assert run.data.params["train.batch_size"] == "16"


def test_losses_are_metrics_with_steps(client, run) -> None:  # type: ignore[no-untyped-def]
    epochs = client.get_metric_history(run.info.run_id, "loss/train")
    assert [m.step for m in epochs] == list(range(1, 61))
    steps = client.get_metric_history(run.info.run_id, "loss/step")
    assert (len(steps), steps[0].step, steps[-1].step) == (MOST_POINTS, 1, 60 * 73)  # of 1,168 rows in batches of 16
    assert steps[-1].value < steps[0].value
    validation = client.get_metric_history(run.info.run_id, "loss/validation")
    assert [m.step for m in validation] == [*range(7, 60, 7), 60]
    accuracy = client.get_metric_history(run.info.run_id, "monitor/accuracy")
    assert [m.step for m in accuracy] == [m.step for m in validation]
    assert accuracy[-1].value > 0.9


def test_metrics_and_timings_are_recorded(run) -> None:  # type: ignore[no-untyped-def]
    for state in ("before", "trained", "source"):
        assert f"test/accuracy/{state}" in run.data.metrics
    assert run.data.metrics["wall_seconds/train"] > 0


def test_what_the_machine_did_is_recorded_on_request(client, run) -> None:  # type: ignore[no-untyped-def]
    memory = client.get_metric_history(run.info.run_id, "system/system_memory_usage_megabytes")
    assert memory[0].value > 0
    assert [point.step for point in memory] == list(range(len(memory)))


def test_points_have_the_times_at_which_they_happened(client, run) -> None:  # type: ignore[no-untyped-def]
    def times(name: str) -> list[int]:
        return [point.timestamp for point in client.get_metric_history(run.info.run_id, name)]

    for name in ("loss/step", "loss/train"):
        assert times(name) == sorted(times(name))
        assert len(set(times(name))) > 3
    [trained], [converted] = times("test/accuracy/trained"), times("wall_seconds/convert")
    assert run.info.start_time <= converted <= times("loss/train")[0] < trained <= run.info.end_time


def test_the_rows_are_datasets_of_which_the_metrics_are(client, run) -> None:  # type: ignore[no-untyped-def]
    found = {entry.tags[0].value: entry.dataset for entry in run.inputs.dataset_inputs}
    assert {use: dataset.name for use, dataset in found.items()} == {
        "training": "digits train",
        "validation": "digits validation",
        "test": "digits test",
    }
    profile = json.loads(found["training"].profile)
    assert (profile["num_rows"], profile["num_elements"], len(profile["ortpipe_digest"])) == (1168, 1168 * 64, 64)
    columns = json.loads(found["test"].schema)["mlflow_colspec"]
    ends = [(column["name"], column["type"]) for column in (columns[0], columns[-1])]
    assert (len(columns), ends) == (65, [("pixel_0_0", "double"), ("label", "long")])
    assert len({dataset.digest for dataset in found.values()}) == 3
    [output] = run.outputs.model_outputs
    measured = {point.key: point for point in client.get_logged_model(output.model_id).metrics}
    point = measured["test/accuracy/trained"]
    assert (point.dataset_name, point.dataset_digest) == ("digits test", found["test"].digest)


def test_the_description_shows_flow_metrics_and_command(run) -> None:  # type: ignore[no-untyped-def]
    note = run.data.tags["mlflow.note.content"]
    assert note.startswith("convert `sklearn` → add_loss `cross_entropy` → ")
    assert "| metric | before | trained | baseline | scikit-learn MLPClassifier |" in note
    assert "train.validate_every=7" in note
    assert run.data.tags["mlflow.user"]
    assert run.data.tags["mlflow.source.type"] == "LOCAL"


def test_graphs_tensors_tables_and_figures_are_artifacts(client, run) -> None:  # type: ignore[no-untyped-def]
    def names(path: str | None = None) -> set[str]:
        return {f.path for f in client.list_artifacts(run.info.run_id, path)}

    top = {
        "config.yaml",
        "environment.json",
        "losses.parquet",
        "run.json",
        "model.onnx",
        "stages",
        "figures",
    }
    assert top <= names()
    assert names("figures") == {"figures/losses.png", "figures/confusion.png", "figures/curves.png"}
    assert names("stages/4_derive") == {
        f"stages/4_derive/{f}" for f in ("model.onnx", "model.txt", "model.svg", "tensors.safetensors", "artifact.json")
    }


def test_the_logged_model_loads_and_predicts(world: tuple[Path, object], client, run) -> None:  # type: ignore[no-untyped-def]
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{world[0]}/outputs/mlflow.db")
    X, y = load_digits(return_X_y=True)
    rows = X[:200].astype(np.float32)
    model = mlflow.pyfunc.load_model(f"runs:/{run.info.run_id}/model")
    assert model.metadata.signature is not None
    assert any((np.asarray(model.input_example["X"][0]) == row).all() for row in X)  # a real row
    for given in (rows, {"X": rows}):
        predicted = model.predict(given)
        assert (predicted["label"] == y[:200]).mean() > 0.97
    [folder] = world[0].glob("outputs/runs/*/*")
    [label] = Session(onnx.load(folder / "model.onnx")).run({"X": rows}, ["label"])
    np.testing.assert_array_equal(np.ravel(predicted["label"]), label)


def test_the_closing_lines_name_the_report_the_next_command_the_run_and_its_page(
    world: tuple[Path, subprocess.CompletedProcess[str]], run
) -> None:  # type: ignore[no-untyped-def]
    folder, done = world
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if " /" in line and "model " not in line)
    assert Path(lines["report"]).name == "report.html"
    assert Path(lines["report"]).is_file()
    assert run.info.run_id in done.stdout
    assert f"next           ortpipe show {Path(lines['report']).parent}" in done.stdout
    assert f"mlflow ui --backend-store-uri sqlite:///{folder}/outputs/mlflow.db" in done.stdout


def test_a_failed_stage_closes_the_run_as_failed(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    done = ortpipe("experiment=linear_regression", "train.optimizer.lr=10", cwd=tmp_path)
    assert done.returncode == 1
    client = MlflowClient(f"sqlite:///{tmp_path}/outputs/mlflow.db")
    [run] = client.search_runs([client.get_experiment_by_name("ortpipe").experiment_id])
    assert run.info.status == "FAILED"
    assert "finite" in run.data.tags["ortpipe.error"]


def test_a_run_that_diverges_later_keeps_its_last_good_checkpoint_and_publishes_nothing(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    rising = ("train/schedule=exponential", "train.schedule.gamma=1.5", "train.optimizer.lr=0.001")
    done = ortpipe("experiment=linear_regression", *rising, "train.checkpoint.epochs=1", cwd=tmp_path)
    assert done.returncode == 1
    assert "largest gradient norms coefficient" in done.stderr
    [folder] = tmp_path.glob("outputs/runs/*/*")
    kept = read_checkpoint(folder)
    assert kept is not None
    assert 1 <= kept.epochs == len(kept.tensors["losses/train"]) < 60
    assert [name for name, tensor in kept.tensors.items() if not np.isfinite(tensor).all()] == []
    assert not (folder / "model.onnx").exists()
    assert not (folder / "stages" / "5_train").exists()
    client = MlflowClient(f"sqlite:///{tmp_path}/outputs/mlflow.db")
    [run] = client.search_runs([client.get_experiment_by_name("ortpipe").experiment_id])
    assert run.info.status == "FAILED"
    assert "largest gradient norms coefficient" in run.data.tags["ortpipe.error"]
    assert "model.onnx" not in {f.path for f in client.list_artifacts(run.info.run_id)}


def test_a_tracking_failure_on_the_way_is_reported_and_kills_nothing(tmp_path: Path) -> None:
    store = tmp_path / "artifacts"
    store.write_text("a file where MLflow wants a folder")  # params can be recorded, artifacts cannot
    done = ortpipe("train.epochs=2", f"recorder.artifacts={store}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "MLflow did not record everything" in done.stderr
    [folder] = tmp_path.glob("outputs/runs/*/*")
    assert json.loads((folder / "run.json").read_text())["metrics"]["accuracy"]["trained"] > 0.5


def test_a_run_from_the_store_has_a_record_as_complete_and_says_whose_results_it_took(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    for _ in range(2):
        done = ortpipe("experiment=linear_regression", "train.epochs=3", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    client = MlflowClient(f"sqlite:///{tmp_path}/outputs/mlflow.db")
    experiment = client.get_experiment_by_name("ortpipe").experiment_id
    made, taken = client.search_runs([experiment], order_by=["attributes.start_time"])
    stages = ("convert", "add_loss", "penalty", "derive", "train", "evaluate")
    assert {made.data.tags[f"ortpipe.stage.{stage}"] for stage in stages} == {"computed"}
    assert {taken.data.tags[f"ortpipe.stage.{stage}"] for stage in stages} == {f"hit from {made.info.run_id}"}

    def numbers(run) -> dict[str, list[tuple[int, float]]]:  # type: ignore[no-untyped-def]
        keys = [key for key in run.data.metrics if not key.startswith("wall_seconds/")]
        return {key: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)] for key in keys}

    def files(run, path: str | None = None) -> set[str]:  # type: ignore[no-untyped-def]
        found = client.list_artifacts(run.info.run_id, path)
        return {f.path for f in found} | {p for f in found if f.is_dir for p in files(run, f.path)}

    assert len(numbers(made)["loss/train"]) == 3
    assert numbers(taken) == numbers(made)
    assert files(taken) == files(made) >= {"run.json", "figures/losses.png", "stages/5_train/tensors.safetensors"}
    assert taken.data.metrics.keys() == made.data.metrics.keys()
    assert len(taken.outputs.model_outputs) == len(made.outputs.model_outputs) == 1
