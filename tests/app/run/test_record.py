"""run.json: one typed record that is read as it was written, or not at all."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml

from ortpipe.app.run import record as module
from ortpipe.app.run.process import PID, this_process
from ortpipe.app.run.record import (
    COMMAND,
    DUMPER,
    FILE,
    FORMAT,
    KILLED,
    RUNNING,
    JobRecord,
    Manifest,
    RunRecord,
    StageRecord,
    config_text,
    read_config,
)
from ortpipe.errors import TrackingError


def record(folder: Path) -> RunRecord:
    parts = {
        "version": 1,
        "input": None,
        "packages": {"numpy": "2"},
        "machine": "x86_64",
        "convert": {"source": {"name": "onnx"}},
    }
    origin = {"folder": "elsewhere", "made": 1.5, "seconds": 2.0}
    stages = [StageRecord("convert", "key", parts, "output", 0.1, origin)]
    metrics = {"r2": {"before": float("-inf"), "trained": 0.5}}
    job = JobRecord("sweep", 3, {"seed": "1"})
    return RunRecord(folder, "mine", this_process(), {"convert": "onnx"}, stages=stages, metrics=metrics, job=job)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = record(tmp_path)
    written.write()
    assert RunRecord.read(tmp_path) == written
    sweep = RunRecord(tmp_path, "sweep", {}, sweep=Manifest("/there", ["seed"], "loss"))
    sweep.write()
    assert RunRecord.read(tmp_path) == sweep


@pytest.mark.parametrize("version", [FORMAT - 1, FORMAT + 1])
def test_a_record_of_another_version_is_refused(version: int, tmp_path: Path) -> None:
    record(tmp_path).write()
    facts = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({**facts, "format": version}))
    with pytest.raises(TrackingError, match=rf"run.json must have format {FORMAT}"):
        RunRecord.read(tmp_path)


@pytest.mark.parametrize("dumper", [DUMPER, yaml.SafeDumper], ids=["libyaml's", "Python's"])
def test_a_config_is_read_as_it_was_written(
    dumper: type[yaml.SafeDumper], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "on",
        "1e3",
        "0x1F",
        "~",
        "",
        " a ",
        "a: b",
        "#",
        "- x",
        "é 漢 😀",
        "\x07\t",
        "a\nb\n\n",
        "x " * 200,
        "'\"",
        "${a}",
    ]
    values = {"texts": words, "keys": dict.fromkeys(words, 1), "numbers": [1, -2.5, 1e-300, 1e16, math.inf, None, True]}
    monkeypatch.setattr(module, "DUMPER", dumper)
    (tmp_path / "config.yaml").write_text(config_text({**values, "empty": [{}, []]}), encoding="utf-8")
    assert read_config(tmp_path) == {**values, "empty": [{}, []]}
    assert list(read_config(tmp_path)) == ["texts", "keys", "numbers", "empty"]


def test_a_run_whose_process_is_gone_is_closed_as_killed_where_that_is_asked_for(tmp_path: Path) -> None:
    run = record(tmp_path)
    run.tags |= {PID: str(2**22 + 1), COMMAND: "ortpipe seed=1"}  # Linux gives no such number
    run.write()
    assert RunRecord.read(tmp_path).status == RUNNING
    closed = RunRecord.read_closed(tmp_path)
    assert (closed.status, RunRecord.read(tmp_path).status) == (KILLED, KILLED)
    assert "it was killed" in (closed.error or "")
    assert closed.again == "ortpipe seed=1"
