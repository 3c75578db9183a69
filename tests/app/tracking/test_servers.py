"""Recording to real servers: by several processes at once, and when one hangs while a run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import ROOT, Popen, ortpipe
from command import run as run_command
from mlflow import MlflowClient
from servers import mlflow_server, postgresql

from benchmarks.tracking import main as record_children
from ortpipe.app.commands.sync import run as sync

SHORT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "2", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}


def test_many_processes_at_once_lose_nothing_in_sqlite(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        record_children(["--children", "6", "--points", "40", "--processes", "3"])
    assert ended.value.code == 0, capsys.readouterr().out


def test_postgresql_behind_a_server_gets_the_same_and_serves_the_registered_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with postgresql() as database, mlflow_server(database, tmp_path) as (address, _):
        with pytest.raises(SystemExit) as ended:
            record_children(["--children", "2", "--points", "40", "--processes", "2", "--tracking-uri", address])
        assert ended.value.code == 0, capsys.readouterr().out
        settings = (f"recorder.tracking_uri={address}", "recorder.register=diabetes")
        done = ortpipe("experiment=linear_regression", "train.epochs=2", *settings, cwd=tmp_path)
        assert done.returncode == 0
        assert "warning" not in done.stderr
        client = MlflowClient(address)
        version = client.get_model_version_by_alias("diabetes", "champion")
        run = client.get_run(version.run_id)
        assert run.info.status == "FINISHED"
        assert {"model.onnx", "stages", "figures"} <= {f.path for f in client.list_artifacts(version.run_id)}
        code = (
            f"import mlflow, numpy; mlflow.set_tracking_uri({address!r}); "
            "print(mlflow.pyfunc.load_model('models:/diabetes@champion').predict(numpy.zeros((3, 10), 'f4')))"
        )
        served = run_command([sys.executable, "-c", code], text=True)
        assert served.returncode == 0, served.stderr
        assert served.stdout.startswith("{")


def test_a_server_that_hangs_delays_a_run_once_and_is_told_the_rest_later(tmp_path: Path) -> None:
    with mlflow_server(f"sqlite:///{tmp_path}/server.db", tmp_path) as (address, server):
        command = [sys.executable, "-m", "ortpipe", "experiment=linear_regression", "train.epochs=200"]
        command.append(f"recorder.tracking_uri={address}")
        environment = {**os.environ, **SHORT, "PYTHONPATH": str(ROOT)}
        process = Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, stdout=-1, text=True)
        assert process.stderr is not None
        while "[5/6] train" not in (line := process.stderr.readline()):
            assert line, "it ended before it trained"
        os.killpg(server.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        out, said = process.communicate(timeout=120)
        assert time.monotonic() - stopped < 60
        assert process.returncode == 0, said
        [folder] = tmp_path.glob("outputs/runs/*/*")
        assert said.count("warning: MLflow did not record everything") == 1
        assert f"ortpipe sync {folder}" in said
        assert (folder / "model.onnx").exists()
        os.killpg(server.pid, signal.SIGCONT)
        sync([str(folder), "--trust"])  # its folder alone says to which server
        client = MlflowClient(address)
        [found] = client.search_runs([client.get_experiment_by_name("ortpipe").experiment_id])
        assert found.info.run_id in out
        assert found.info.status == "FINISHED"
        losses = client.get_metric_history(found.info.run_id, "loss/train")
        assert [point.step for point in losses] == list(range(1, 201))
        assert found.outputs is not None
        assert len(found.outputs.model_outputs) == 1


def test_a_server_that_is_away_is_said_before_any_work_with_both_ways_out(tmp_path: Path) -> None:
    done = ortpipe("recorder.tracking_uri=http://127.0.0.1:9", cwd=tmp_path)
    assert done.returncode == 1
    assert "must be reachable" in done.stderr
    assert "recorder=none" in done.stderr
    assert "ortpipe sync" in done.stderr
    assert not list(tmp_path.glob("outputs/runs/*/*/stages"))
