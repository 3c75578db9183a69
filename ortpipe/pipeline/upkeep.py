"""Looking after a store: what is in it, whether it is whole, and what may go."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ortpipe.files import TEMPORARY, temporary
from ortpipe.pipeline.locks import Say, forget, together
from ortpipe.pipeline.store import Damaged, Entry, Store, listed


@dataclass(frozen=True)
class Stored:
    """An entry, the bytes of its artifact (which other entries may share), and when it was last of use."""

    entry: Entry
    bytes: int
    used: float


def stored(store: Store, say: Say) -> list[Stored]:
    """Return what is in a store, what was used last first; what cannot be read now is left out, and said."""
    found = []
    for entry in store.entries(say=say):
        try:
            used = store.place(entry.stage, entry.key).stat().st_mtime
        except FileNotFoundError:  # removed meanwhile
            continue
        found.append(Stored(entry, size(store.path(entry.output)), used))
    return sorted(found, key=lambda one: (-one.used, one.entry.stage, one.entry.key))


def size(folder: Path) -> int:
    """Return the bytes of a folder's files."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # written or removed by others meanwhile
            total += file.stat().st_size if file.is_file() else 0
    return total


@dataclass(frozen=True)
class Verified:
    """How many entries were whole, how many were not, how many cannot be read now, and how many have another seal."""

    whole: int = 0
    damaged: int = 0
    unread: int = 0
    foreign: int = 0


def verify(store: Store, say: Say) -> Verified:
    """Read everything; what is not as it was written is set aside, and an entry without its artifact goes.

    What others remove meanwhile is not counted.
    """
    whole: set[str] = set()
    count = dict.fromkeys(("whole", "damaged", "unread", "foreign"), 0)
    for path in store.files():
        state = _state(store, path, whole, say)
        if state is not None:
            count[state] += 1
    return Verified(**count)


def _state(store: Store, path: Path, whole: set[str], say: Say) -> str | None:
    """Return whether an entry is `whole`, `foreign`, `damaged` or `unread`; None where it is gone. `whole` grows."""
    try:
        entry = store.entry(path, say)
        if entry is None:
            return None
        try:
            if entry.output in whole or store.artifact(entry.output, say) is not None:
                whole.add(entry.output)
                return "whole" if store.trusts(entry) else "foreign"
        except Damaged:
            pass
        with together(store.folder, exclusive=True):
            if not path.exists() or store.path(entry.output).exists():  # removed, or published again
                return None
            path.unlink()
        say(f"{entry.stage} {entry.key[:12]} has no artifact any more")
        return "damaged"
    except Damaged:
        return "damaged"
    except OSError as error:
        say(f"{error.filename or path} cannot be read now ({error.strerror or error})")
        return "unread"


def spare(found: list[Stored], *, since: float | None = None, most: int | None = None) -> list[Stored]:
    """Return the entries that may go: not used since then, or used least recently where all take more bytes."""
    kept: set[str] = set()
    total, going = 0, []
    for one in found:
        more = 0 if one.entry.output in kept else one.bytes
        old = since is not None and one.used < since
        if old or (most is not None and total + more > most):
            going.append(one)
            continue
        kept.add(one.entry.output)
        total += more
    return going


def remove(store: Store, entries: Iterable[Entry]) -> int:
    """Remove entries, then artifacts that no entry names and what killed processes left; return the bytes gained.

    Runs that read or publish are waited for, and wait.
    """
    if not store.folder.is_dir():
        return 0
    with together(store.folder, exclusive=True):
        before = size(store.folder)
        for entry in entries:
            store.place(entry.stage, entry.key).unlink(missing_ok=True)
        named = {_output(path) for path in store.files()}
        artifacts = store.folder / "artifacts"
        for folder in (artifacts / part / name for part in listed(artifacts) for name in listed(artifacts / part)):
            if folder.name in named:
                continue
            going = folder
            if not TEMPORARY.fullmatch(folder.name):  # what a publisher left when it was killed
                going = temporary(folder)  # a kill leaves no half of an artifact under its name
                os.rename(folder, going)
            shutil.rmtree(going)
        for file in (store.folder / "entries").glob("*/.*"):
            file.unlink()
        forget(store.folder / "locks")
        return before - size(store.folder)


def _output(path: Path) -> str | None:
    """Return the artifact that an entry's file names, whatever else is wrong with it."""
    try:
        return str(json.loads(path.read_bytes())["output"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
