"""A store whose files cannot be read now, or go while they are looked at: nothing good is set aside or removed."""

from __future__ import annotations

import builtins
import contextlib
import errno
import gc
import io
import multiprocessing
import os
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from ortpipe.artifact import Artifact, Facts
from ortpipe.artifact_folder import load_artifact
from ortpipe.files import atomic_folder
from ortpipe.pipeline.digest import key_of
from ortpipe.pipeline.gc import remove, verify
from ortpipe.pipeline.store import Store

MODEL = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["" : 21]> '
    "g (float[N, 1] X) => (float[N, 1] Y) <float[1, 1] w = {1}> { Y = MatMul(X, w) }"
)
FACTS = Facts("regression", inputs=("X",), outputs=("Y",), prediction="Y", parameters=("w",))


def publish(store: Store, number: int, say: list[str]) -> tuple[str, str]:
    """Publish an artifact of its own; return the key and the digest."""
    artifact = Artifact(MODEL, FACTS, {"number": np.array([number])}).next("convert", 1)
    parts = {"stage": "convert", "number": number}
    entry = store.publish("convert", key_of(parts), parts, artifact, 0.1, say.append)
    return entry.key, entry.output


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open no other file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = [int(name) for name in os.listdir("/proc/self/fd")]
    spare = [os.dup(0) for _ in range(max(used) + 1 - len(used))]  # holes would be free too
    limit = max(*used, *spare) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    gc.disable()  # a collection may close files that other tests left open
    try:
        yield
    finally:
        gc.enable()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for handle in spare:
            os.close(handle)


def test_what_cannot_be_opened_is_a_miss_and_stays(tmp_path: Path) -> None:
    store, said = Store(tmp_path), []
    key, digest = publish(store, 1, said)
    with no_more_files():
        assert store.take("convert", key, None, said.append) is None
    [message] = said
    assert "cannot be read now (Too many open files): computed again" in message
    assert not (tmp_path / "damaged").exists()
    assert store.take("convert", key, None, said.append) is not None
    assert load_artifact(store.artifact_folder(digest)).digest() == digest


@pytest.mark.parametrize("file", ["model.onnx", "tensors.safetensors", "artifact.json"])
def test_what_cannot_be_read_is_said_by_verify_and_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    store, said = Store(tmp_path), []
    key, digest = publish(store, 1, said)
    real = io.open

    def fails(path: Any, *arguments: Any, **named: Any) -> Any:
        if str(path).endswith(file):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *arguments, **named)

    for module in (io, builtins):  # of pathlib, and of onnx
        monkeypatch.setattr(module, "open", fails)
    assert verify(store, said.append) == Counter(unread=1)
    assert store.take("convert", key, None, said.append) is None
    monkeypatch.undo()
    assert ["cannot be read now (Input/output error)" in message for message in said] == [True, True]
    assert verify(store, said.append) == Counter(intact=1)
    assert load_artifact(store.artifact_folder(digest)).digest() == digest


def test_an_entry_that_cannot_be_read_keeps_its_artifact_from_garbage_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, said = Store(tmp_path), []
    _, digest = publish(store, 1, said)
    real = os.listdir

    def refuses(place: object = ".") -> list[str]:
        if str(place).endswith("entries/convert"):
            raise PermissionError(13, "Permission denied", str(place))
        return real(place)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(os, "listdir", refuses)
    with pytest.raises(PermissionError):
        remove(store, [])
    monkeypatch.undo()
    assert store.artifact_folder(digest).is_dir()
    remove(store, [])
    assert load_artifact(store.artifact_folder(digest)).digest() == digest


def collect(folder: Path, rounds: int) -> None:
    store = Store(folder)
    for number in range(rounds):
        publish(store, number % 4, [])
        remove(store, list(store.entries())[: number % 3])


def test_verify_beside_publishing_and_garbage_collection_finds_nothing_damaged(tmp_path: Path) -> None:
    collector = multiprocessing.get_context("fork").Process(target=collect, args=(tmp_path, 150))
    collector.start()
    store, said, rounds, whole = Store(tmp_path), [], 0, 0
    while collector.is_alive():
        found = verify(store, said.append)
        assert (found["damaged"], found["unread"]) == (0, 0)
        rounds, whole = rounds + 1, whole + found["intact"]
    collector.join()
    assert collector.exitcode == 0
    assert said == []
    assert rounds > 20
    assert whole > 20


def test_what_one_process_put_right_another_does_not_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read the damaged artifact; one sets it aside and publishes it again before the other does."""
    slow, said = Store(tmp_path), []
    key, digest = publish(slow, 1, said)
    model = slow.artifact_folder(digest) / "model.onnx"
    model.chmod(0o644)
    model.write_bytes(b"damaged")
    real = slow._load

    def late(digest: str) -> Artifact | None:
        monkeypatch.undo()
        try:
            return real(digest)
        finally:
            slow.artifact_folder(digest).rename(tmp_path / "elsewhere")
            publish(Store(tmp_path), 1, said)

    monkeypatch.setattr(slow, "_load", late)
    found = slow.take("convert", key, None, said.append)
    assert found is not None
    assert found[0].digest() == digest
    assert not (tmp_path / "damaged").exists()


def test_a_damaged_artifact_and_its_entry_are_counted_once(tmp_path: Path) -> None:
    store, said = Store(tmp_path), []
    _, first = publish(store, 1, said)
    _, second = publish(store, 2, said)
    (store.artifact_folder(first) / "tensors.safetensors").unlink()  # of a folder that can be listed
    assert verify(store, said.append) == Counter(intact=1, damaged=1)
    assert verify(store, said.append) == Counter(intact=1)
    assert [path.name for path in (tmp_path / "damaged").iterdir()] == [f"{first}.0"]
    assert store.artifact_folder(second).is_dir()


def test_a_folder_that_cannot_take_its_place_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, real = tmp_path / "folder", os.rename
    with atomic_folder(target) as folder:
        (folder / "old").touch()

    def fail(source: object, place: object) -> None:
        if str(place) == str(target) and (Path(str(source)) / "new").exists():
            raise OSError(28, "No space left on device")
        real(source, place)  # type: ignore[arg-type]

    def replace() -> None:
        with atomic_folder(target) as folder:
            (folder / "new").touch()

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="No space"):
        replace()
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert [path.name for path in target.iterdir()] == ["old"]
