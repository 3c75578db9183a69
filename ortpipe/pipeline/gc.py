"""Looking after a store: what is in it, whether it is intact, and garbage collection."""

import contextlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ortpipe.files import TEMPORARY, temporary
from ortpipe.pipeline.locks import Notify, folder_lock, remove_stale
from ortpipe.pipeline.store import Damaged, Entry, Store, listed


@dataclass(frozen=True)
class Usage:
    """An entry, the bytes of its artifact (which other entries may share), and when it was last used."""

    entry: Entry
    bytes: int
    used: float


def usage(store: Store, notify: Notify) -> list[Usage]:
    """Return what is in a store, the latest used first; `notify` hears of what cannot be read now."""
    usages = []
    for entry in store.entries(notify=notify):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            used = store.entry_file(entry.stage, entry.key).stat().st_mtime
            usages.append(Usage(entry, size(store.artifact_folder(entry.output)), used))
    return sorted(usages, key=lambda one: (-one.used, one.entry.stage, one.entry.key))


def size(folder: Path) -> int:
    """Return the bytes of a folder's files."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # written or removed by others meanwhile
            total += file.stat().st_size if file.is_file() else 0
    return total


def verify(store: Store, notify: Notify) -> Counter[str]:
    """Read everything; what is not as it was written is set aside, and an entry without its artifact is removed.

    Count how many entries are `intact`, were `damaged`, are `unread` (they cannot be read now), and `foreign` (intact,
    with another seal); what others remove meanwhile is not counted.
    """
    intact: set[str] = set()  # digests of artifacts
    states = (_state(store, path, intact, notify) for path in store.files())
    return Counter(state for state in states if state is not None)


def _state(store: Store, path: Path, intact: set[str], notify: Notify) -> str | None:
    """Return what `verify` counts an entry as, None where it is gone; an artifact is read once."""
    try:
        entry = store.entry(path, notify)
        if entry is None:
            return None
        try:
            if entry.output in intact or store.artifact(entry.output, notify) is not None:
                intact.add(entry.output)
                return "intact" if store.trusts(entry) else "foreign"
        except Damaged:
            pass
        with folder_lock(store.folder, exclusive=True):
            if not path.exists() or store.artifact_folder(entry.output).exists():  # removed, or published again
                return None
            path.unlink()
        notify(f"{entry.stage} {entry.key[:12]} has no artifact any more")
        return "damaged"
    except Damaged:
        return "damaged"
    except OSError as error:
        notify(f"{error.filename or path} cannot be read now ({error.strerror or error})")
        return "unread"


def evictable(usages: Sequence[Usage], *, since: float | None = None, most: int | None = None) -> list[Usage]:
    """Return the entries that may go: not used since then, or the least recently used ones beyond so many bytes."""
    kept: set[str] = set()  # digests of artifacts
    total, candidates = 0, []
    for one in usages:
        more = 0 if one.entry.output in kept else one.bytes
        old = since is not None and one.used < since
        if old or (most is not None and total + more > most):
            candidates.append(one)
            continue
        kept.add(one.entry.output)
        total += more
    return candidates


def remove(store: Store, entries: Iterable[Entry]) -> int:
    """Remove entries, then artifacts that no entry names and what killed processes left; return the bytes freed.

    Runs that read or publish are waited for, and wait.
    """
    if not store.folder.is_dir():
        return 0
    with folder_lock(store.folder, exclusive=True):
        before = size(store.folder)
        for entry in entries:
            store.entry_file(entry.stage, entry.key).unlink(missing_ok=True)
        named = {_output(path) for path in store.files()}
        artifacts = store.folder / "artifacts"
        for folder in (artifacts / part / name for part in listed(artifacts) for name in listed(artifacts / part)):
            if folder.name in named:
                continue
            garbage = folder
            if not TEMPORARY.fullmatch(folder.name):  # what a publisher left when it was killed
                garbage = temporary(folder)  # a kill leaves no half of an artifact under its name
                os.rename(folder, garbage)
            shutil.rmtree(garbage)
        for file in (store.folder / "entries").glob("*/.*"):
            file.unlink()
        remove_stale(store.folder / "locks")
        return before - size(store.folder)


def _output(path: Path) -> str | None:
    """Return the artifact that an entry's file names, whatever else is wrong with it."""
    try:
        return str(json.loads(path.read_bytes())["output"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
