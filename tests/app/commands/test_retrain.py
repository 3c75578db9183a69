"""ortpipe retrain: the champion's config on new rows, a check of the rows, and one champion at every moment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import ROOT
from mlflow import MlflowClient
from registered import Registered, table
from sqlalchemy import event
from sqlalchemy.engine import Engine

from ortpipe.app.drift import PROFILE, RejectedRowsError
from ortpipe.app.gates import GateError
from ortpipe.app.run.record import RunRecord, read_config
from ortpipe.app.tracking.client import close_databases
from ortpipe.errors import ConfigError, TrackingError

Call = Callable[..., str]
BETTER = ("recorder.only_if_better=roc_auc", "figures=true")


@pytest.fixture
def place(registered: Registered, call: Call) -> tuple[str, ...]:
    """Return the arguments for a registry whose `fresh` has the first run's model as champion."""
    client = MlflowClient(registered.uri)
    source = client.get_model_version("churn", "1")
    if not client.search_registered_models("name = 'fresh'"):
        client.create_registered_model("fresh")
        client.create_model_version("fresh", source.source, source.run_id)
    client.set_registered_model_alias("fresh", "champion", "1")
    return (f"recorder.tracking_uri={registered.uri}", "hydra.run.dir=run")


def champion(registered: Registered) -> str:
    return str(MlflowClient(registered.uri).get_model_version_by_alias("fresh", "champion").version)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_retraining_leaves_the_champion_as_a_worse_one_does_and_a_better_one_replaces_it(
    registered: Registered,
    place: tuple[str, ...],
    call: Call,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = f"data.source.path={table(tmp_path / 'new.csv', 1)}"
    arguments = ("models:/fresh@champion", rows, *place, *BETTER, "train.epochs=6", "train.optimizer.lr=0.5")
    close_databases()
    if (child := os.fork()) == 0:

        def kill(connection: object, cursor: object, statement: str, *_: object) -> None:
            if "registered_model_aliases" in statement and statement.startswith(("INSERT", "UPDATE")):
                os.kill(os.getpid(), signal.SIGKILL)  # between "better" and "alias moved"

        event.listen(Engine, "before_cursor_execute", kill)
        try:
            call("retrain", *arguments, "figures=false")
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert champion(registered) == "1"
    assert len(MlflowClient(registered.uri).search_model_versions("name = 'fresh'")) == 2
    outcome = json.loads(call("retrain", *arguments, "--json", "hydra.run.dir=again"))
    assert (outcome["outcome"], outcome["code"], outcome["promoted"]) == ("promoted", 0, "models:/fresh/3")
    assert champion(registered) == "3"
    assert outcome["comparison"]["version"] == "models:/fresh/1"
    record, config = RunRecord.read(tmp_path / "again"), read_config(tmp_path / "again")
    assert config["start"] == "models:/fresh/1"
    assert config["train"]["epochs"] == 6
    assert config["data"]["source"]["label"] == "y"
    assert record.drift["against"] == "models:/fresh/1"
    assert record.tags["ortpipe.drift"] == record.notes["data"][-1]
    assert (tmp_path / "again" / "figures" / "drift.png").is_file()
    assert "<h2>Drift</h2>" in (tmp_path / "again" / "report.html").read_text(encoding="utf-8")
    more = ("recorder.margin=0.9", "train.epochs=1", "figures=false", "hydra.run.dir=scratch")
    with pytest.raises(GateError, match="is not better than models:/fresh/3"):
        call("retrain", *arguments[:-3], *more, "--from-scratch", "--json")
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["outcome"], outcome["code"], champion(registered)) == ("kept", 3, "3")
    config = read_config(tmp_path / "scratch")
    assert (config["start"], config["convert"]["source"]["name"]) == (None, "mlp")  # that of the first run
    artifacts = {entry.path for entry in MlflowClient(registered.uri).list_artifacts(str(record.mlflow))}
    assert {PROFILE, "config.yaml"} <= artifacts


def test_broken_rows_are_rejected_before_a_run_begins(
    registered: Registered, place: tuple[str, ...], call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, runs = champion(registered), MlflowClient(registered.uri).search_runs(["1"])
    broken = table(tmp_path / "broken.csv", 1, shift=9)
    with pytest.raises(RejectedRowsError, match="New rows must be like the rows that trained models:/fresh/1") as error:
        call("retrain", "models:/fresh@champion", f"data.source.path={broken}", *place, *BETTER, "--json")
    outcome = json.loads(capsys.readouterr().out)
    assert (error.value.code, outcome["outcome"], outcome["code"], outcome["run"]) == (4, "rejected", 4, None)
    assert outcome["drift"]["rejected"][0].startswith("x: 100.0% of the numbers are outside")
    Path("text.csv").write_text("x,w,y\n1,a,yes\n2,b,no\n3,c,no\noops,a,yes\n")
    with pytest.raises(RejectedRowsError, match="all of them must be") as error:
        call("retrain", "models:/fresh@champion", "data.source.path=text.csv", *place, *BETTER)
    assert error.value.code == 4
    assert champion(registered) == before
    assert len(MlflowClient(registered.uri).search_runs(["1"])) == len(runs)


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("models:/churn@champion", (), "recorder.only_if_better decides whether a retrained model is promoted."),
        ("RUN", ("recorder.register=null",), "recorder.register decides"),
        ("models:/churn@champion", ("convert=onnx",), "retrain changes single keys"),
        ("models:/churn@champion", ("train/optimizer=adam",), "retrain changes single keys"),
        ("models:/churn@champion", ("train.epochs=1,2",), "retrain changes single keys"),
        ("models:/churn@champion", ("~figures",), "retrain changes single keys"),
        ("models:/churn@champion", ("data.check.ps=1", *BETTER), "Did you mean 'psi'?"),
        ("models:/churn@nobody", (), "Only a model of ortpipe can be retrained."),
        ("no run", (), "MODEL must name a run or a registered model."),
        ("UNPROFILED", (), "A retrained run must have its profile.json."),
        ("THEIRS", BETTER, "executed only with your consent"),
    ],
)
def test_a_retraining_that_cannot_decide_is_an_error(
    model: str, arguments: tuple[str, ...], message: str, registered: Registered, call: Call, tmp_path: Path
) -> None:
    folder = registered.run.folder
    changed = tmp_path / "changed"
    changed.mkdir()
    for name in ("run.json", "config.yaml", *([PROFILE] if model == "THEIRS" else [])):
        text = (folder / name).read_text(encoding="utf-8")
        (changed / name).write_text(text.replace("name: csv", "name: theirs:Source"), encoding="utf-8")
    model = {"RUN": str(folder), "UNPROFILED": str(changed), "THEIRS": str(changed)}.get(model, model)
    with pytest.raises((ConfigError, TrackingError), match=re.escape(message)):
        call("retrain", model, f"recorder.tracking_uri={registered.uri}", *arguments)


EXAMPLES = ROOT / "docs" / "examples"


def example(name: str) -> Any:
    return yaml.load((EXAMPLES / name).read_text(encoding="utf-8"), yaml.BaseLoader)  # which reads `on` as a word


def commands() -> list[str]:
    """Return the shell script of each example."""
    cron = (EXAMPLES / "retrain.cron").read_text(encoding="utf-8").splitlines()[-1]
    steps = example("retrain_github.yaml")["jobs"]["retrain"]["steps"]
    [container] = example("retrain_cronjob.yaml")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["sh", "-c"]
    [step] = [step["run"] for step in steps if "retrain" in step.get("run", "")]
    return [cron.split(maxsplit=5)[5], step, *container["args"]]


def test_the_schedules_have_the_required_fields() -> None:
    workflow, job = example("retrain_github.yaml"), example("retrain_cronjob.yaml")
    line = (EXAMPLES / "retrain.cron").read_text(encoding="utf-8").splitlines()[-1]
    assert {*line.split(maxsplit=5)[:5], *workflow["on"]["schedule"][0]["cron"].split()} == {"0", "4", "*", "1"}
    assert all({"uses", "run"} & {*step} for step in workflow["jobs"]["retrain"]["steps"])
    assert (job["apiVersion"], job["kind"], job["spec"]["schedule"]) == ("batch/v1", "CronJob", "0 4 * * 1")
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    [rule] = job["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert (rule["onExitCodes"]["containerName"], rule["onExitCodes"]["values"]) == (
        pod["containers"][0]["name"],
        ["4"],
    )
    assert pod["restartPolicy"] == "Never"  # which podFailurePolicy requires
    mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("code", [0, 3, 4, 1])
def test_a_kept_champion_is_no_failure_of_a_schedule(code: int, tmp_path: Path) -> None:
    program = tmp_path / "ortpipe"
    program.write_text(f'#!/bin/sh\necho error >&2\n[ "$1 $2" = "retrain models:/churn@champion" ] && exit {code}\n')
    program.chmod(0o755)
    place = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_STEP_SUMMARY": "summary.md"}
    cron, *others = (command.replace("cd /srv/churn", ":") for command in commands())
    for command, shell in zip(others, (["bash", "-eo", "pipefail", "-c"], ["sh", "-c"]), strict=True):
        done = subprocess.run([*shell, command], cwd=tmp_path, env=place, check=False)
        assert done.returncode == (0 if code == 3 else code)
    mailed = "error" if code in (1, 4) else ""
    done = subprocess.run(["sh", "-c", cron], cwd=tmp_path, env=place, check=False, capture_output=True, text=True)
    assert done.stdout.strip() == mailed
