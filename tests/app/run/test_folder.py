"""What a run folder holds beside artifacts: a log per stage, losses as Parquet, and the way on after a failure."""

from __future__ import annotations

import errno
import json
import logging
import re
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pyarrow as pa
import pytest
from command import ortpipe, start, wait_for
from pyarrow import parquet

from ortpipe import load_artifact
from ortpipe.app.run.folder import RunFolder, losses_parquet
from ortpipe.app.run.record import COMMAND, RUNNING, RunRecord
from ortpipe.app.run.stage_log import MOST_LINES, StageLogs
from ortpipe.artifact import Artifact, Facts
from ortpipe.errors import ConvergenceError, DataError, OrtpipeError, TrackingError, TrainError
from ortpipe.flow import FLOW
from ortpipe.pipeline.events import (
    Event,
    RunFailed,
    RunFinished,
    RunStarted,
    StageNotice,
    StageProgressed,
    StageStarted,
)
from ortpipe.pipeline.plan import Stage, Step
from ortpipe.pipeline.run import run
from ortpipe.stages.train.training import Epoch

SMALL = ("experiment=linear_regression", "train.epochs=3")
PLAN = tuple(Step(stage, None) for stage in FLOW)
STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (.*)")


def said(log: Path) -> list[str]:
    """Return what a log says, without its times."""
    matches = [STAMP.fullmatch(line) for line in log.read_text().splitlines()]
    return [match[2] for match in matches if match]


def test_every_stage_has_a_log_of_what_it_reported_and_which_run_computed_it(cli: Callable, tmp_path: Path) -> None:
    for _ in range(2):
        assert cli(*SMALL, "train.checkpoint.epochs=2").returncode == 0
    first, second = sorted(tmp_path.glob("outputs/runs/*/*"))
    logs = [f"{i}_{stage.name}.log" for i, stage in enumerate(FLOW, start=1)]
    assert sorted(path.name for path in (first / "logs").iterdir()) == logs
    lines = said(first / "logs" / "5_train.log")
    assert lines[0] == "stage 5 of 6: train"
    epochs = [line.split(":")[0] for line in lines if line.startswith("epoch ")]
    assert epochs == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert "checkpoint after epoch 2" in lines
    assert f"result {load_artifact(first / 'stages' / '5_train').digest()}" in lines
    assert re.fullmatch(r"finished in \d+\.\d{3} s", lines[-1])
    began = datetime.fromisoformat(STAMP.match((first / "logs" / "1_convert.log").read_text())[1])
    assert timedelta() < datetime.now(UTC) - began < timedelta(minutes=5)
    again = said(second / "logs" / "5_train.log")
    assert re.fullmatch(rf"cached: computed in \d+\.\d+ s at \S+ by folder {first}", again[1])


def test_what_is_logged_and_warned_of_during_a_stage_is_in_its_log_and_still_shown(
    tmp_path: Path,
) -> None:
    logs = StageLogs(tmp_path)
    logs(RunStarted(PLAN))
    logging.getLogger("ortpipe").warning("before any stage")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        before = warnings.showwarning
        logs(StageStarted("convert", 1, 6))
        logging.getLogger("ortpipe.stages").warning("about %s", "rows")
        warnings.warn("a scale of zero", UserWarning, stacklevel=1)
        logs(StageNotice("convert", "waits for another"))
        logs(RunFailed(ValueError("no rows"), "convert", killed=False))
        assert warnings.showwarning is before
    logging.getLogger("ortpipe").warning("after it")
    lines = said(tmp_path / "logs" / "1_convert.log")
    assert lines[1:5] == [
        "WARNING ortpipe.stages: about rows",
        "UserWarning: a scale of zero",
        "waits for another",
        "failed",
    ]
    assert (tmp_path / "logs" / "1_convert.log").read_text().endswith("ValueError: no rows\n")
    assert [str(warning.message) for warning in shown] == ["a scale of zero"]


def test_a_log_of_very_many_epochs_has_a_thousand_lines_and_the_last(tmp_path: Path) -> None:
    logs, epochs = StageLogs(tmp_path), 10 * MOST_LINES + 7
    logs(RunStarted(PLAN))
    logs(StageStarted("train", 5, 6))
    for number in range(1, epochs - 2):
        logs(StageProgressed("train", Epoch(number, epochs, 0.5, None, 0.1, number, number)))
    logs(RunFailed(KeyboardInterrupt(), "train", killed=True))
    lines = [line for line in said(tmp_path / "logs" / "5_train.log") if line.startswith("epoch ")]
    assert len(lines) == MOST_LINES + 1
    assert lines[-1].startswith(f"epoch {epochs - 3}/{epochs}: loss 0.5, rate 0.1")


def test_a_log_that_cannot_be_written_is_given_up_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").write_text("a file where a folder should be")
    logs, before = StageLogs(tmp_path), warnings.showwarning
    logs(RunStarted(PLAN))
    logs(StageStarted("convert", 1, 6))
    logs(StageNotice("convert", "goes on"))
    logs(RunFailed(ValueError(), "convert", killed=False))
    assert "warning: no log in" in capsys.readouterr().err
    assert warnings.showwarning is before


def test_a_run_that_is_killed_while_it_computes_has_recorded_what_it_took_from_the_store(
    cli: Callable, tmp_path: Path
) -> None:
    assert cli(*SMALL, "recorder=none").returncode == 0
    endless = start("recorder=none", *SMALL, "train.epochs=100000000", "train.checkpoint.epochs=1000", cwd=tmp_path)
    wait_for(lambda: any(tmp_path.glob("outputs/runs/*/*/checkpoint.safetensors")))
    endless.kill()
    endless.communicate()
    _, killed = sorted(tmp_path.glob("outputs/runs/*/*"))
    stages = RunRecord.read(killed).stages
    assert [stage.name for stage in stages] == ["convert", "add_loss", "penalty", "derive"]
    assert all(stage.origin for stage in stages)


def test_losses_are_typed_columns_with_nulls_where_nothing_is_known(tmp_path: Path) -> None:
    tensors = {
        "losses/step": np.array([0.5, 0.25, 0.125, 0.1], np.float32),
        "losses/rate": np.array([0.1, 0.1, 0.05, 0.05]),
        "losses/train": np.array([0.4, 0.2]),
        "losses/validation": np.array([np.nan, 0.3]),
        "monitor/r2": np.array([np.nan, 0.9]),
    }
    (tmp_path / "losses.parquet").write_bytes(losses_parquet(SimpleNamespace(tensors=tensors)))
    back = parquet.read_table(tmp_path / "losses.parquet")
    assert back.schema.types == [pa.string(), pa.int64(), pa.float64(), pa.float64()]
    assert back.column_names == ["kind", "number", "value", "rate"]
    rows = [tuple(row.values()) for row in back.to_pylist()]
    assert rows[2:] == [
        ("step", 3, 0.125, 0.05),
        ("step", 4, pytest.approx(0.1), 0.05),
        ("train", 1, 0.4, None),
        ("train", 2, 0.2, None),
        ("validation", 1, None, None),
        ("validation", 2, 0.3, None),
        ("r2", 1, None, None),
        ("r2", 2, 0.9, None),
    ]
    back.validate(full=True)


def test_the_losses_of_a_run_are_those_of_its_artifact(cli: Callable, only_run: Callable) -> None:
    assert cli(*SMALL, "train/optimizer=lbfgs", "~train.optimizer.lr").returncode == 0
    tensors = load_artifact(only_run() / "stages" / "5_train").tensors
    table = parquet.read_table(only_run() / "losses.parquet").to_pylist()
    for kind in ("step", "train"):
        values = [row["value"] for row in table if row["kind"] == kind]
        np.testing.assert_array_equal(values, tensors[f"losses/{kind}"])
    assert {row["rate"] for row in table} == {None}


def way_on(error: str) -> dict[str, str]:
    """Return what a run that failed says beside its error."""
    lines = [re.match(r"(stage|its log|report|cached|continue with:)\s+(.*)", s) for s in error.splitlines()]
    return {match[1]: match[2] for match in lines if match}


def test_a_stage_that_fails_ends_the_run_with_its_name_its_log_and_the_command_that_does_what_is_left(
    cli: Callable, tmp_path: Path
) -> None:
    done = cli(*SMALL, "train.optimizer.lr=1e12", "name='two words'")
    assert done.returncode == 1
    [folder] = tmp_path.glob("outputs/runs/*/*")
    told = way_on(done.stderr)
    assert told["stage"] == "train"
    assert told["its log"] == str(folder / "logs" / "5_train.log")
    assert "ConvergenceError: Losses" in Path(told["its log"]).read_text()
    assert Path(told["report"]).is_file()
    assert told["cached"] == "convert, add_loss, penalty, derive"
    assert "continue with:" not in told
    mended = ["recorder=none", *SMALL, "train.optimizer.lr=0.01", "name='two words'"]
    assert ortpipe(*mended, cwd=tmp_path).returncode == 0
    last = max(tmp_path.glob("outputs/runs/*/*"))
    stages = RunRecord.read(last).stages
    assert [stage.origin is not None for stage in stages] == [True] * 4 + [False] * 2


def test_a_stage_that_is_refused_before_its_turn_has_a_log_too(cli: Callable, only_run: Callable) -> None:
    done = cli(*SMALL, "evaluate.metrics=[accuracy]")
    assert done.returncode == 1
    assert way_on(done.stderr)["stage"] == "evaluate"
    assert sorted(path.name for path in (only_run() / "logs").iterdir()) == ["1_convert.log", "6_evaluate.log"]
    assert "EvaluateError" in (only_run() / "logs" / "6_evaluate.log").read_text()


@pytest.fixture
def broken(tmp_path: Path) -> Callable[[BaseException], tuple[BaseException, dict[str, str]]]:
    """Return what breaks a run at train with an error, beside a checkpoint; it returns that error and what it says."""

    def broken(error: BaseException) -> tuple[BaseException, dict[str, str]]:
        (tmp_path / "checkpoint.safetensors").touch()
        rows = {"source": {"name": "npz"}, "digest": "0", "rows": {"train": 3}}
        record = RunRecord(tmp_path, "mine", {COMMAND: "ortpipe seed=1 resume=elsewhere"}, {"train": "sgd"}, rows)

        def breaks(event: Event) -> None:
            if isinstance(event, StageStarted):
                raise error

        listeners = [StageLogs(tmp_path), RunFolder(record, "seed: 1\n", {}), breaks]
        with pytest.raises(type(error)) as raised:
            run((Step(Stage("train", "never:called"), None),), {}, listeners)
        return raised.value, way_on("\n".join(raised.value.__notes__))

    return broken


def test_a_run_that_trained_continues_from_its_checkpoint_whatever_broke_it(broken: Callable, tmp_path: Path) -> None:
    _, told = broken(OSError(errno.ENOSPC, "No space left on device"))
    assert told["continue with:"] == f"ortpipe seed=1 resume={tmp_path}"
    assert told["its log"] == str(tmp_path / "logs" / "1_train.log")


@pytest.mark.parametrize("error", [TrainError("A lower rate."), ConvergenceError("Diverged."), DataError("No rows.")])
def test_an_error_that_asks_for_another_config_does_not_offer_the_command_that_must_fail_again(
    error: OrtpipeError, broken: Callable, tmp_path: Path
) -> None:
    _, told = broken(error)
    assert "continue with:" not in told
    assert json.loads((tmp_path / "run.json").read_text())["again"] is None
    assert "is left runs with" not in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_a_server_that_is_away_may_be_back_when_the_command_is_repeated(broken: Callable, tmp_path: Path) -> None:
    _, told = broken(TrackingError("The server must answer."))
    assert told["continue with:"] == f"ortpipe seed=1 resume={tmp_path}"


def test_a_run_that_is_stopped_says_so_in_its_report(broken: Callable, tmp_path: Path) -> None:
    _, told = broken(KeyboardInterrupt())
    assert told["continue with:"] == f"ortpipe seed=1 resume={tmp_path}"
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# mine: stopped\n")
    assert "KeyboardInterrupt" in text
    assert said(tmp_path / "logs" / "1_train.log")[1] == "stopped"


def test_an_error_of_any_letters_is_in_log_and_report(broken: Callable, tmp_path: Path) -> None:
    error, _ = broken(ValueError("no rows in caf\udce9.csv"))  # a file's name that is not UTF-8
    assert not any(note.startswith("after it") for note in error.__notes__)
    for name in ("report.md", "report.html", "logs/1_train.log"):
        assert "no rows in caf\\udce9.csv" in (tmp_path / name).read_text()


def test_a_report_that_cannot_be_written_does_not_hide_the_error(broken: Callable, tmp_path: Path) -> None:
    (tmp_path / "report.md").mkdir()  # no file can take its place
    error, told = broken(ValueError("the reason"))
    assert str(error) == "the reason"
    assert told["stage"] == "train"
    assert "report" not in told
    assert any(note.startswith("after it: [Errno ") for note in error.__notes__)


def test_a_run_whose_report_cannot_be_written_has_finished_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.md").mkdir()  # no file can take its place
    rows = {"source": {"name": "npz"}, "digest": "0", "rows": {"train": 3}}
    record = RunRecord(tmp_path, "mine", {COMMAND: "ortpipe seed=1"}, {}, rows)
    artifact = Artifact(onnx.ModelProto(), Facts("regression", ("X",), ("Y",), "Y", ()), {"losses/step": np.ones(1)})
    RunFolder(record, "seed: 1\n", {})(RunFinished(artifact))
    assert f"warning: no report of {tmp_path}: [Errno " in capsys.readouterr().err


def test_a_run_into_a_folder_says_that_it_goes_on_before_it_removes_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("run.json", "model.onnx", ".hidden"):
        (tmp_path / name).touch()
    statuses: list[str] = []
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        statuses.append(RunRecord.read(tmp_path).status)
        real(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    RunFolder(RunRecord(tmp_path, "mine", {}), "seed: 1\n", {})(RunStarted(()))
    assert set(statuses) == {RUNNING}
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [".hidden", "config.yaml", "environment.json", "run.json"]
