"""A sweep of eight jobs, two of which diverge: folders, summary, exit code, and what MLflow holds."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from app.sweep.sweeps import EIGHT, RATES, TINY, folder_of, parent_and_children, rows_of, runs_of, states_of
from command import ortpipe

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    where = tmp_path_factory.mktemp("sweep")
    return where, ortpipe(*EIGHT, "objective=r2", cwd=where)


def test_failing_jobs_stop_no_other_and_the_exit_code_tells(world: tuple[Path, Done]) -> None:
    where, done = world
    assert done.returncode == 1
    assert "2 of 8 jobs did not finish" in done.stderr
    assert f"MLflow run     {parent_and_children(where)[0].info.run_id}\n" in done.stdout
    assert [*states_of(folder_of(where)).values()] == ["finished"] * 6 + ["failed"] * 2


def test_a_failing_job_keeps_its_error_and_the_summary_shows_it(world: tuple[Path, Done]) -> None:
    where, done = world
    traceback = (folder_of(where) / "6" / "error.txt").read_text()
    assert "Traceback" in traceback
    assert "ConvergenceError: Losses and parameters must stay finite" in traceback
    assert "jobs 6, 7 failed: Losses and parameters must stay finite" in done.stdout
    assert f"see: {folder_of(where)}/6/error.txt" in done.stdout


def test_the_summary_has_a_row_for_every_job_and_marks_the_best(world: tuple[Path, Done]) -> None:
    where, done = world
    rows = rows_of(folder_of(where))
    assert [(row["train.optimizer.lr"], row["seed"]) for row in rows] == [
        (rate, seed) for rate in ("0.002", "0.02", "0.1", "10") for seed in ("0", "1")
    ]
    measured = {row["job"]: float(row["validation/r2"]) for row in rows if row["validation/r2"]}
    assert len(measured) == 6
    [best] = [row["job"] for row in rows if row["best"] == "True"]
    assert measured[best] == max(measured.values())
    record = json.loads((folder_of(where) / best / "run.json").read_text())
    assert record["values"]["validation/r2"] == measured[best] != record["metrics"]["r2"]["trained"]
    assert {row["job"]: row["test/r2"] for row in rows if row["test/r2"]} == {
        best: str(record["metrics"]["r2"]["trained"])
    }
    first = next(line for line in done.stdout.splitlines() if line.startswith("*"))
    assert first.split()[1] == best


def test_stages_that_jobs_share_run_once(world: tuple[Path, Done]) -> None:
    hits = [row["hits"] for row in rows_of(folder_of(world[0]))]
    assert hits == ["0/6", "0/6", "4/6", "4/6", "4/6", "4/6", "4/4", "4/4"]  # of both seeds; then training fails


def test_mlflow_has_one_parent_with_a_child_for_every_job_named_after_what_varies(world: tuple[Path, Done]) -> None:
    parent, children = parent_and_children(world[0])
    assert parent.info.status == "FAILED"
    assert parent.data.tags["ortpipe.error"] == "2 of 8 jobs did not finish"
    names = {f"lr={rate} seed={seed}" for rate in ("0.002", "0.02", "0.1", "10") for seed in (0, 1)}
    assert {child.info.run_name for child in children} == names
    ended = {child.info.run_name: child.info.status for child in children}
    assert {name for name, status in ended.items() if status == "FAILED"} == {"lr=10 seed=0", "lr=10 seed=1"}
    assert [*ended.values()].count("FINISHED") == 6


def test_the_parent_holds_table_figure_and_best(world: tuple[Path, Done]) -> None:
    from mlflow import MlflowClient

    where, _ = world
    client = MlflowClient(f"sqlite:///{where}/outputs/mlflow.db")
    parent, children = parent_and_children(where)
    files = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert {"summary.csv", "summary.json", "summary.png", "config.yaml"} <= files
    assert (folder_of(where) / "summary.png").read_bytes().startswith(b"\x89PNG")
    table = json.loads(Path(client.download_artifacts(parent.info.run_id, "summary.json")).read_text())
    assert len(table["data"]) == 8
    assert json.loads(parent.data.tags["mlflow.loggedArtifacts"]) == [{"path": "summary.json", "type": "table"}]
    [best] = [child for child in children if child.info.run_id == parent.data.tags["ortpipe.best"]]
    for rows in ("validation", "test"):
        assert best.data.metrics[f"{rows}/r2/trained"] == parent.data.metrics[f"best/{rows}/r2"]
    assert parent.data.metrics["jobs/failed"] == 2
    assert parent.data.params["varies.seed"] == "0,1"


def test_figures_are_drawn_of_the_best_job_and_of_others_when_someone_asks(world: tuple[Path, Done]) -> None:
    from mlflow import MlflowClient

    where, _ = world
    sweep, (_, children) = folder_of(where), parent_and_children(where)
    [best] = [row["job"] for row in rows_of(sweep) if row["best"] == "True"]
    assert [file.parent.name for file in sweep.glob("*/figures")] == [best]
    assert "data:image/png" in (sweep / best / "report.html").read_text()
    other = sweep / ("0" if best != "0" else "1")
    command = f"ortpipe report {other}"
    assert command in (other / "report.html").read_text()
    assert command in (other / "report.md").read_text()

    def recorded(job: Path) -> set[str]:
        [run] = [run for run in children if run.data.tags["ortpipe.job"] == job.name]
        client = MlflowClient(f"sqlite:///{where}/outputs/mlflow.db")
        return {file.path for file in client.list_artifacts(run.info.run_id, "figures")}

    drawn = {"figures/losses.png", "figures/predicted.png", "figures/residuals.png"}
    assert recorded(sweep / best) == drawn
    before = {file: file.read_bytes() for file in (sweep / best / "figures").iterdir()}
    assert ortpipe("report", str(sweep / best), cwd=where).returncode == 0
    assert {file: file.read_bytes() for file in (sweep / best / "figures").iterdir()} == before
    assert recorded(other) == set()
    assert ortpipe("report", str(other), cwd=where).stdout == f"{other}/report.html\n"
    assert {f"figures/{file.name}" for file in (other / "figures").iterdir()} == drawn
    assert command not in (other / "report.html").read_text()
    assert ortpipe("sync", str(other), cwd=where).returncode == 0
    assert recorded(other) == drawn


def test_a_job_that_fails_its_gate_stops_no_other_and_the_best_one_decides_the_exit_code(
    world: tuple[Path, Done],
) -> None:
    rates, limit = "train.optimizer.lr=0.002,0.02", "+evaluate.require.r2='<= 0'"
    done = ortpipe("-m", *TINY, rates, "objective=r2", "recorder=none", limit, cwd=world[0])
    assert done.returncode == 3
    assert "fails r2 <= 0: it is 0.06314 on the validation rows" in done.stderr
    sweep = folder_of(world[0])
    assert [row["status"] for row in rows_of(sweep)] == ["finished", "failed gates"]
    tags = [json.loads((sweep / job / "run.json").read_text())["tags"]["ortpipe.gates"] for job in "01"]
    assert [tag.partition(";")[0] for tag in tags] == ["passed", "failed"]
    assert states_of(sweep) == {0: "finished", 1: "finished"}


def test_a_sweep_that_does_not_compose_leaves_no_run(world: tuple[Path, Done]) -> None:
    done = ortpipe("-m", *TINY, "train/optimizer=sgd,adm", cwd=world[0])
    assert done.returncode == 1
    assert "Did you mean 'adam'?" in done.stderr
    assert len(runs_of(world[0])) == 9


def test_the_same_command_again_takes_what_succeeded_from_the_store_and_can_be_recorded_later(
    world: tuple[Path, Done],
) -> None:
    where, _ = world
    again = ortpipe("-m", *TINY, RATES, "objective=r2", "recorder=none", cwd=where)
    assert again.returncode == 1
    assert [row["hits"] for row in rows_of(folder_of(where))] == ["6/6"] * 3 + ["4/4"]
    before = {run.info.run_id for run in runs_of(where)}
    assert len(before) == 9
    assert ortpipe("sync", str(folder_of(where)), cwd=where).returncode == 0
    added = [run for run in runs_of(where) if run.info.run_id not in before]
    [parent] = [run for run in added if "mlflow.parentRunId" not in run.data.tags]
    assert parent.info.status == "FAILED"
    children = [run for run in added if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert sorted(run.info.status for run in children) == ["FAILED"] + ["FINISHED"] * 3


BAD = {
    "objective=acuracy": "Did you mean 'accuracy'?",
    "evaluate.metrics=[r2] objective=mean_squared_error": "objective must be a metric that evaluate computes.",
    "objective=r2 data.split.validation=0": "Set data.split.validation=0.15, or objective=loss.",
    "objective=accuracy": "A metric must fit the model's task.",
    "recorder=mlflow recorder.tracking_uri=http://127.0.0.1:9": "The tracking server or database must be reachable",
}


@pytest.mark.parametrize("given", BAD)
def test_what_cannot_work_is_said_before_any_training(given: str, tmp_path: Path) -> None:
    done = ortpipe("-m", *TINY, "seed=0,1", "recorder=none", *given.split(), cwd=tmp_path)
    assert done.returncode == 1
    assert BAD[given] in done.stdout + done.stderr
    assert list(tmp_path.glob("outputs/multiruns/*/*/*/stages/5_train")) == []
    if given.startswith(("evaluate", "objective=r2")):  # one error of all jobs, and none starts
        assert "job 0" not in done.stdout + done.stderr
        assert not (tmp_path / "outputs/multiruns").exists()


def test_a_job_whose_config_is_wrong_fails_alone(tmp_path: Path) -> None:
    done = ortpipe("-m", *TINY, "train.batch_size=0,32", "recorder=none", cwd=tmp_path)
    assert done.returncode == 1
    assert states_of(folder_of(tmp_path)) == {0: "failed", 1: "finished"}
    assert "train.batch_size must be a whole number, at least 1" in done.stdout
