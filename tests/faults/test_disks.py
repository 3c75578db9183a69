"""Disks that are full, read-only, others, or gone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from command import ROOT, ortpipe
from faults.conftest import outputs_of
from faults.processes import SMALL, end, start, until

from ortpipe.artifact_folder import load_artifact
from ortpipe.pipeline.store import Store

Mount = Callable[..., Path]
FULL = "No space left on device"


def half_written(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".?*") if path.name not in (".lock", ".hydra")]


def test_a_disk_that_fills_while_publishing_stops_nothing_and_keeps_what_is_whole(
    tmp_path: Path, mount: Mount, expected: list[str]
) -> None:
    cache = mount("små cache", "size=64k")
    done = ortpipe(*SMALL, f"paths.cache='{cache}'", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"cannot write to the store {cache}: {FULL}; the run continues") == 1
    assert outputs_of(tmp_path) == ([], expected)
    assert half_written(cache) == []
    assert list((cache / "locks").iterdir()) == []
    entries = list(Store(cache).entries())
    assert 0 < len(entries) < 6
    assert all(load_artifact(Store(cache).artifact_folder(entry.output)).digest() == entry.output for entry in entries)
    subprocess.run(["mount", "-o", "remount,size=4m", cache], check=True)  # somebody makes room
    done = ortpipe(*SMALL, f"paths.cache='{cache}'", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    hits, found = outputs_of(tmp_path)
    assert (set(hits), found) == ({entry.stage for entry in entries}, expected)
    assert len(list(Store(cache).entries())) == 6
    for stage in (tmp_path / "outputs" / "runs").glob("*/*/stages/*"):  # copies: links do not reach another disk
        assert (stage / "model.onnx").stat().st_nlink == 1
        assert load_artifact(stage)


def test_a_full_disk_of_outputs_ends_the_run_with_what_to_do(tmp_path: Path, mount: Mount) -> None:
    outputs = mount("outputs", "size=64k")
    done = ortpipe(*SMALL, f"paths.cache={tmp_path / 'cache'}", cwd=tmp_path)
    assert done.returncode == 1
    told = done.stderr.splitlines()
    first = told.index("error: The disk must have space for the results of a run.")
    assert told[first : first + 3] == [
        "error: The disk must have space for the results of a run.",
        f"  got: [Errno 28] {FULL}",
        "  fix: Free some space, or set paths.outputs to a folder on another disk.",
    ]
    assert "Traceback" not in done.stderr
    assert half_written(outputs) == []


def test_a_read_only_store_gives_what_it_has_and_is_said_once_to_keep_nothing(
    copy: Path, mount: Mount, expected: list[str]
) -> None:
    cache = mount("cache", "size=4m")
    shutil.copytree(copy / "outputs" / "cache", cache, dirs_exist_ok=True)
    shutil.rmtree(cache / "entries" / "train")
    before = sorted(cache.rglob("*"))
    subprocess.run(["mount", "-o", "remount,ro", cache], check=True)
    done = ortpipe(*SMALL, "evaluate.metrics=[r2]", f"paths.cache={cache}", cwd=copy)
    assert done.returncode == 0, done.stderr
    hits, found = outputs_of(copy)
    assert (hits, found[:5]) == (["convert", "add_loss", "penalty", "derive"], expected[:5])
    assert done.stderr.count("Read-only file system") == 2
    assert done.stderr.count("no lock on") == done.stderr.count("cannot write to the store") == 1
    assert sorted(cache.rglob("*")) == before


AS_ANOTHER = """
import json, os, sys
from pathlib import Path
import ortpipe.graph.files.serial
from ortpipe.pipeline.store import Store

os.setgroups([])
os.setgid(65534)
os.setuid(65534)
store, said = Store(Path(sys.argv[1])), []
[entry] = store.entries("derive")
taken, _ = store.take("derive", entry.key, None, said.append)
with store.lock(entry.key, said.append):
    try:
        store.publish("derive", entry.key, entry.parts, taken, 1.0, said.append)
    except PermissionError:
        said.append("not published")
print(json.dumps([taken.digest(), said, store.take(sys.argv[2], sys.argv[3], None, said.append)]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_store_of_another_user_is_read_and_not_written(copy: Path, expected: list[str]) -> None:
    """Root may write anywhere, so who reads is somebody else."""
    cache = copy / "outputs" / "cache"
    mine = [place for place in (copy, *copy.parents) if place.is_relative_to(tempfile.gettempdir())]
    for place in mine[:-1]:  # pytest's folders are their user's alone
        place.chmod(place.stat().st_mode | 0o55)
    [hidden] = Store(cache).entries("train")
    (cache / "entries" / "train").chmod(0o700)
    command = [sys.executable, "-c", AS_ANOTHER, cache, hidden.stage, hidden.key]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    digest, said, unreadable = json.loads(done.stdout)
    assert (digest, unreadable) == (expected[3], None)
    assert [message.partition(" on ")[0] for message in said[:2]] == ["no lock", "not published"]
    [unread] = said[2:]
    assert unread.endswith("cannot be read now (Permission denied): computed again")


def test_a_store_that_is_deleted_while_a_run_goes_on_is_begun_again(copy: Path) -> None:
    process = start(copy, *SMALL[:1], "train.epochs=1500", "recorder=none")
    until(process, "epoch 150/1500")
    shutil.rmtree(copy / "outputs" / "cache")
    code, said = end(process)
    assert code == 0, said
    assert "Traceback" not in said
    store = Store(copy / "outputs" / "cache")
    assert {entry.stage for entry in store.entries()} == {"train", "evaluate"}
    [run] = copy.glob("outputs/runs/*/*")
    assert all(load_artifact(stage) for stage in (run / "stages").iterdir())
