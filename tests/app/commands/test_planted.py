"""Links, pipes, bombs and names that lead elsewhere, planted at every place of a run's folder that a command reads."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ortpipe.app.commands.diff import run as diff
from ortpipe.app.commands.report import run as report
from ortpipe.app.commands.repro import run as repro
from ortpipe.app.commands.restore import run as restore
from ortpipe.app.commands.show import run as show
from ortpipe.app.commands.sync import run as sync
from ortpipe.app.run.checkpoint import read_checkpoint
from ortpipe.errors import OrtpipeError

PRIVATE = "PRIVATE-5e1d-content"
Command = Callable[[Path], object]
COMMANDS: dict[str, Command] = {
    "report": lambda run: report([str(run)]),
    "sync": lambda run: sync([str(run), "recorder.register=null"]),
    "repro": lambda run: repro([str(run)]),
    "show": lambda run: show([str(run)]),
    "diff": lambda run: diff([str(run), str(run)]),
    "restore": lambda run: restore([str(run), "--into", "new.onnx"]),
    "resume": read_checkpoint,
}
MODELS = ("show", "diff", "restore")  # all look a run's model up in one way
LAST = "stages/6_evaluate"
NEEDED = {  # files and folders, and the commands that need them
    "run.json": ("report", "sync", "repro"),
    "config.yaml": ("sync", "repro"),
    "environment.json": ("repro",),
    "stages": MODELS,
    LAST: ("show",),
    f"{LAST}/artifact.json": ("report", *MODELS),
    f"{LAST}/model.onnx": ("report", "show"),
    f"{LAST}/tensors.safetensors": ("report", "show"),
    "checkpoint.safetensors": ("resume",),
}
OTHERS = (
    "logs/5_train.log",
    "figures/losses.png",
    "stages/5_train/model.svg",
    "example.npz",
    "mlflow.json",
    "summary.md",
)


@pytest.fixture
def folder(linear: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    run = shutil.copytree(linear, tmp_path / "outputs" / "runs" / "day" / "run")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(linear.parent), str(tmp_path / "outputs")))
    (run / "mlflow.json").unlink()
    signal.alarm(600)  # a pipe would block for ever
    yield run
    signal.alarm(0)


def plant(kind: str, place: Path, outside: Path) -> None:
    if place.is_dir():
        shutil.move(place, outside)
    else:
        outside.write_text(PRIVATE)
        place.unlink(missing_ok=True)
    if kind == "link":
        place.symlink_to(outside)
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.write_bytes(b"[" * 100_000)


def leaks(folder: Path, printed: str) -> list[str]:
    """Return where the private text is: in the report, in what was recorded, or in what was printed."""
    forms = (PRIVATE, base64.b64encode(PRIVATE.encode()).decode())
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and path.name != "outside"]
    texts = {str(path): path.read_bytes() for path in files} | {"printed": printed.encode()}
    return [name for name, text in texts.items() for form in forms if form.encode() in text]


@pytest.mark.parametrize("kind", ["link", "pipe", "deep"])
@pytest.mark.parametrize("name", NEEDED)
def test_a_needed_file_that_is_another_thing_is_rejected(
    name: str, kind: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(kind, folder / name, tmp_path / "outside")
    for command in NEEDED[name]:
        with pytest.raises(OrtpipeError):
            COMMANDS[command](folder)
    assert leaks(tmp_path, capsys.readouterr().out) == []


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_other_files_that_are_another_thing_are_left_out(
    kind: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(folder, status="FAILED", stage="train", error="it")  # the report of a failed run ends with its log
    for name in OTHERS:
        plant(kind, folder / name, tmp_path / "outside")
    for command in ("report", "sync"):
        COMMANDS[command](folder)
    assert leaks(tmp_path, capsys.readouterr().out) == []
    sent = {path.name for path in (tmp_path / "outputs" / "mlflow").rglob("*")}
    assert "report.html" in sent
    assert not {"losses.png", "5_train.log", "summary.md"} & sent


def edit(folder: Path, **fields: Any) -> None:
    file = folder / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


FIELDS: dict[str, dict[str, Any]] = {
    "a stage of the plan": {"plan": {"x/../../../outside": ""}, "stage": "x/../../../outside", "status": "FAILED"},
    "a stage of the notes": {"notes": {"[x](http://x)": ["a"]}},
    "the stage that failed": {"stage": "../x"},
    "the id": {"id": "' or '1"},
    "the id in MLflow": {"mlflow": "x/../y"},
    "the status": {"status": "<b>"},
    "a time": {"started": 10**20},
    "the rows": {"data": {"rows": [1]}},
    "the digest of the data": {"data": {"rows": {}, "digests": {}, "source": {}, "columns": {}, "label": {}}},
    "an epoch": {"epochs": [[1], [2, 3, 4]]},
    "the model": {"model": {"task": "binary"}},
    "the parameters": {"model": {"parameters": {"w": ["x"]}}},
    "an interval": {"intervals": {"r2": [1]}},
    "an importance": {"importance": {"r2": {"x": "ab"}}},
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_record_is_validated_where_it_is_read(field: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.log").write_text(PRIVATE)
    edit(folder, **FIELDS[field])
    for command in ("report", "sync", "repro"):
        with pytest.raises(OrtpipeError, match=r"must have a readable run\.json"):
            COMMANDS[command](folder)
    assert leaks(folder, "") == []


LINES: dict[str, Any] = {
    "no records": 1,
    "a text": ["a"],
    "a record without a stage": [{"version": 1}],
    "a record without a version": [{"stage": "train"}],
    "a stage that is no text": [{"stage": [], "version": 1}],
    "notes": [{"stage": "convert", "version": 1, "notes": 1}],
    "rows": [{"stage": "convert", "version": 1, "rows": {"X": 3}}],
    "a table": [{"stage": "convert", "version": 1, "table": {"columns": {"X": {}}}}],
    "an origin": [{"stage": "convert", "version": 1, "origins": {"w": {"initializer": []}}}],
    "initial weights": [{"stage": "convert", "version": 1, "init": []}],
    "the best epoch": [{"stage": "train", "version": 1, "early_stop": {}}],
    "an importance": [{"stage": "evaluate", "version": 1, "importance": {"r2": [1]}}],
}


@pytest.mark.parametrize("lines", LINES)
def test_a_lineage_record_is_validated_where_it_is_read(lines: str, folder: Path) -> None:
    for file in folder.glob("stages/*/artifact.json"):
        written = json.loads(file.read_text())
        file.chmod(0o644)
        file.write_text(json.dumps({**written, "facts": {**written["facts"], "lineage": LINES[lines]}}))
    for command in ("show", "diff", "restore", "report"):
        with pytest.raises(OrtpipeError, match="An artifact's facts must have the types") as error:
            COMMANDS[command](folder)
        assert "\n  got: lineage" in str(error.value)


def test_files_larger_than_any_real_one_are_not_read(folder: Path) -> None:
    for name, command in (("config.yaml", "report"), (f"{LAST}/model.onnx", "show")):
        os.truncate(folder / name, 2**34)  # no byte of it is on the disk
        with pytest.raises(OrtpipeError, match="it has more than"):
            COMMANDS[command](folder)


def test_a_record_may_lack_its_command_and_the_name_of_its_source(folder: Path) -> None:
    record = json.loads((folder / "run.json").read_text())
    edit(folder, tags={}, data={**record["data"], "source": {}})
    report([str(folder)])
    assert (folder / "report.html").is_file()
