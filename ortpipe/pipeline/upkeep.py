"""Looking after a store: what is in it, whether it is whole, and what may go."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ortpipe.pipeline.locks import Say, forget, together
from ortpipe.pipeline.store import Entry, Store


@dataclass(frozen=True)
class Stored:
    """An entry, the bytes of its artifact (which other entries may share), and when it was last of use."""

    entry: Entry
    bytes: int
    used: float


def stored(store: Store) -> list[Stored]:
    """Return what is in a store, what was used last first."""
    found = []
    for entry in store.entries():
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


def verify(store: Store, say: Say) -> tuple[int, int]:
    """Read everything; what is not as it was written is set aside. Return how many were whole, and how many were not.

    An entry whose artifact is gone counts as damaged, and goes.
    """
    whole = damaged = 0
    checked: dict[str, bool] = {}
    for path in sorted((store.folder / "entries").glob("*/*.json")):
        with together(store.folder):
            entry = store.entry(path, say)
            if entry is not None and entry.output not in checked:
                checked[entry.output] = store.artifact(entry.output, say) is not None
        if entry is not None and checked[entry.output]:
            whole += 1
            continue
        damaged += 1
        if entry is not None:
            say(f"{entry.stage} {entry.key[:12]} has no artifact any more")
            path.unlink(missing_ok=True)
    return whole, damaged


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
        named = {entry.output for entry in store.entries()}
        for folder in (store.folder / "artifacts").glob("*/*"):
            if folder.name not in named:  # also `.<digest>.<random>`, which a publisher left when it was killed
                shutil.rmtree(folder)
        for file in (store.folder / "entries").glob("*/.*"):
            file.unlink()
        forget(store.folder / "locks")
        return before - size(store.folder)
