"""A run whose record a helper keeps leaves what a run without one leaves."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import onnx
import pytest
from command import ROOT, ortpipe
from mlflow import MlflowClient

from ortpipe.app.run.record import RunRecord
from ortpipe.app.tracking import helped_run
from ortpipe.app.tracking.helped_run import HelpedRun
from ortpipe.app.tracking.metrics import Results
from ortpipe.app.tracking.recorders.mlflow import Mlflow

helpers = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="a helper takes another core, on Linux"
)
SETTINGS = ("experiment=mlp_regression", "train.epochs=3", "paths.outputs=out")
START = "import os, sys, runpy; os.sched_setaffinity(0, {cores}); runpy.run_module('ortpipe', run_name='__main__')"


def command(folder: Path, *settings: str, cores: set[int]) -> subprocess.Popen[str]:
    """Start a run on some cores; on one it has no helpers."""
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
    line = [sys.executable, "-c", START.format(cores=cores), *SETTINGS, "hydra.run.dir=run", *settings]
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(line, cwd=folder, env=environment, **out)


def graph(file: Path) -> bytes:
    """Return a model with its weights, which MLflow writes beside it, under a name that is made up."""
    model = onnx.load(file)
    for tensor in model.graph.initializer:
        del tensor.external_data[:]
    return model.SerializeToString(deterministic=True)


def recorded(folder: Path, outputs: str = "out") -> dict[str, Any]:
    """Return what MLflow has of the only run, but for ids, times and places."""
    client = MlflowClient(f"sqlite:///{folder}/{outputs}/mlflow.db")
    [experiment] = client.search_experiments(filter_string="name = 'ortpipe'")
    [run] = client.search_runs([experiment.experiment_id])
    own = ("ortpipe.pid", "ortpipe.started", "ortpipe.run", "ortpipe.run_folder", "mlflow.note.content", "hit from")
    [model] = client.search_logged_models([experiment.experiment_id])
    metrics = {name: value for name, value in run.data.metrics.items() if "seconds" not in name}
    histories = {name: [p.value for p in client.get_metric_history(run.info.run_id, name)] for name in metrics}
    artifacts, folders = {}, [""]
    while folders:
        for entry in client.list_artifacts(run.info.run_id, folders.pop() or None):
            folders += [entry.path] if entry.is_dir else []
            artifacts[entry.path] = entry.is_dir
    place = Path(model.artifact_location.removeprefix("file://"))
    return {
        "status": run.info.status,
        "name": run.info.run_name,
        "params": {k: v for k, v in run.data.params.items() if str(folder) not in v},
        "tags": {k: v for k, v in run.data.tags.items() if not k.startswith(own) and str(folder) not in v},
        "metrics": histories,
        "artifacts": artifacts,
        "inputs": [(i.dataset.name, i.dataset.digest, i.dataset.profile) for i in run.inputs.dataset_inputs],
        "model": (model.status, model.params, sorted(path.suffix for path in place.iterdir())),
        "graph": graph(place / "model.onnx"),
        "example": (place / "input_example.json").read_text(),
    }


def files(folder: Path) -> dict[str, bytes | None]:
    """Return a run folder's files; of those that say times or places, only that they are there."""
    said = ("run.json", "mlflow.json", "environment.json", "config.yaml", "report.", "logs", "main.log")
    paths = [path for path in sorted((folder / "run").rglob("*")) if path.is_file()]
    named = {str(path.relative_to(folder / "run")): path for path in paths}
    return {name: None if name.startswith(said) else path.read_bytes() for name, path in named.items()}


@helpers
def test_it_leaves_the_same_files_and_the_same_record(tmp_path: Path) -> None:
    alone, helped = tmp_path / "alone", tmp_path / "helped"
    for folder, cores in ((alone, {min(os.sched_getaffinity(0))}), (helped, os.sched_getaffinity(0))):
        with command(folder, cores=cores) as process:
            said, _ = process.communicate()
            assert process.returncode == 0, said
    assert files(helped) == files(alone)
    assert "figures/losses.png" in files(helped)
    assert recorded(helped) == recorded(alone)
    assert recorded(helped)["status"] == "FINISHED"


def begun(process: subprocess.Popen[str]) -> list[int]:
    """Return the helpers of a run that trains."""
    for line in process.stdout:
        if "epoch" in line:
            return [int(p) for p in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    raise AssertionError("it has ended")


def still_there(helper: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{helper}/status").read_text()
    except FileNotFoundError:
        return False


@helpers
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_with_its_group_is_recorded_as_stopped(tmp_path: Path, number: int) -> None:
    with command(tmp_path / "a", "train.epochs=1000000", cores=os.sched_getaffinity(0)) as process:
        found = begun(process)
        assert len(found) == 2
        for one in (process.pid, *found):  # as a terminal, or a scheduler, does
            os.kill(one, number)
        process.communicate()
    assert process.returncode == 128 + number
    assert not any(map(still_there, found))
    client = MlflowClient(f"sqlite:///{tmp_path}/a/out/mlflow.db")
    [run] = client.search_runs(["1"])
    assert (run.info.status, RunRecord.read(tmp_path / "a" / "run").status) == ("KILLED", "KILLED")


@helpers
def test_helpers_of_a_run_that_is_killed_end_too(tmp_path: Path) -> None:
    with command(tmp_path / "a", "train.epochs=1000000", cores=os.sched_getaffinity(0)) as process:
        found = begun(process)
        process.kill()
        process.communicate()
    deadline = time.monotonic() + 10
    while any(map(still_there, found)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@helpers
def test_a_run_whose_helpers_are_killed_finishes_and_is_recorded_whole(tmp_path: Path) -> None:
    with command(tmp_path / "a", "train.epochs=20000", cores=os.sched_getaffinity(0)) as process:
        for helper in begun(process):
            os.kill(helper, signal.SIGKILL)
        said, _ = process.communicate()
    assert process.returncode == 0, said
    assert (recorded(tmp_path / "a")["status"], (tmp_path / "a" / "run" / "figures").is_dir()) == ("FINISHED", True)


@helpers
def test_a_database_that_does_not_answer_ends_the_run_before_it_starts(tmp_path: Path) -> None:
    with command(tmp_path / "a", "recorder.tracking_uri=http://127.0.0.1:9", cores=os.sched_getaffinity(0)) as process:
        said, _ = process.communicate()
    assert process.returncode == 1
    assert "The tracking server or database must answer before any work starts." in said
    assert not (tmp_path / "a" / "run" / "stages").exists()


class Here:
    """Stands in for a helper, in this process; what it is given goes through a pickle."""

    def __init__(self) -> None:
        self.keeper, self.sent = helped_run._Keeper(), []

    def ask(self, *arguments: Any) -> None:
        """Keep what is asked."""
        content = pickle.dumps(arguments)
        self.sent.append(len(content))
        self.result = self.keeper(*pickle.loads(content))

    def answer(self) -> Any:
        """Return what was made of it."""
        return self.result


@pytest.mark.parametrize("largest", [2**26, 0])
def test_large_weights_are_read_from_the_runs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    done = ortpipe(*SETTINGS, "convert.source.params.hidden_layer_sizes=[512,512]", "hydra.run.dir=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "run" / "mlflow.json").unlink()
    monkeypatch.setattr(helped_run, "LARGE", largest)
    target = Mlflow(f"sqlite:///{tmp_path}/again/mlflow.db", artifacts=str(tmp_path / "again" / "mlflow"))
    (tmp_path / "again").mkdir()
    record, helper = RunRecord.read(tmp_path / "run"), Here()
    run = HelpedRun(helper, target, record, Results.read(record))
    run.push()
    assert run.to_register is False
    assert (max(helper.sent) > 512 * 512 * 4) == (largest > 0)
    before, after = recorded(tmp_path), recorded(tmp_path, "again")
    assert (after["metrics"], after["graph"], after["example"]) == (
        before["metrics"],
        before["graph"],
        before["example"],
    )
