"""List, verify and garbage-collect a store."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ortpipe.bounded import files_below, parse_json, read
from ortpipe.files import TEMPORARY, delete, temporary
from ortpipe.pipeline.locks import Notify, folder_lock, remove_stale
from ortpipe.pipeline.store import Damaged, Entry, Store, listed


@dataclass(frozen=True)
class Usage:
    """An entry, the bytes of its artifact (which other entries may share), and when it was last used."""

    entry: Entry
    bytes: int
    used: float


def usage(store: Store, notify: Notify) -> list[Usage]:
    """Return the store's entries with their usage, the latest used first; report unreadable ones to `notify`."""
    usages = []
    for entry in store.entries(notify=notify):
        with contextlib.suppress(FileNotFoundError):  # removed in the meantime
            used = store.entry_file(entry.stage, entry.key).stat().st_mtime
            usages.append(Usage(entry, size(store.artifact_folder(entry.output)), used))
    return latest_first(usages)


def latest_first(usages: Iterable[Usage]) -> list[Usage]:
    """Return usages in order, the latest used first."""
    return sorted(usages, key=lambda usage: (-usage.used, usage.entry.stage, usage.entry.key))


def location(store: Store) -> str:
    """Return the folder of the store."""
    return str(store.folder)


def size_of_artifacts(store: Store) -> int:
    """Return the size of the store's artifacts in bytes."""
    return size(store.folder / "artifacts")


def size(folder: Path) -> int:
    """Return the size of a folder's files in bytes."""
    total = 0
    for file in files_below(folder):
        with contextlib.suppress(FileNotFoundError):  # removed by another process in the meantime
            total += file.stat().st_size
    return total


def verify(store: Store, notify: Notify) -> Counter[str]:
    """Verify all entries and their artifacts; damaged ones are set aside, entries without an artifact are removed.

    Return the number of entries that are `intact`, `damaged`, `unread` (they cannot be read now) and `foreign` (intact,
    with another seal); entries that another process removes in the meantime are not counted.
    """
    intact: set[str] = set()  # digests of artifacts
    states = (_state(store, path, intact, notify) for path in store.files())
    return Counter(state for state in states if state is not None)


def _state(store: Store, path: Path, intact: set[str], notify: Notify) -> str | None:
    """Return an entry's state as `verify` counts it, None if the entry is gone; each artifact is read only once."""
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
        notify(f"{entry.stage} {entry.key[:12]} no longer has an artifact")
        return "damaged"
    except Damaged:
        return "damaged"
    except OSError as error:
        notify(f"{error.filename or path} cannot be read now ({error.strerror or error})")
        return "unread"


def evictable(usages: Sequence[Usage], *, since: float | None = None, most: int | None = None) -> list[Usage]:
    """Return the eviction candidates: not used since `since`, or the least recently used beyond `most` bytes."""
    kept_outputs: set[str] = set()  # digests of artifacts
    total, candidates = 0, []
    for usage in usages:
        size_added = 0 if usage.entry.output in kept_outputs else usage.bytes
        old = since is not None and usage.used < since
        if old or (most is not None and total + size_added > most):
            candidates.append(usage)
            continue
        kept_outputs.add(usage.entry.output)
        total += size_added
    return candidates


def remove(store: Store, entries: Iterable[Entry]) -> int:
    """Remove entries, unreferenced artifacts and the files that killed processes left; return the bytes freed.

    An exclusive lock keeps out runs that read or publish.
    """
    if not store.folder.is_dir():
        return 0
    with folder_lock(store.folder, exclusive=True):
        before = size(store.folder)
        for entry in entries:
            store.entry_file(entry.stage, entry.key).unlink(missing_ok=True)
        referenced = {_output(path) for path in store.files()}
        artifacts = store.folder / "artifacts"
        for folder in (artifacts / part / name for part in listed(artifacts) for name in listed(artifacts / part)):
            if folder.name in referenced:
                continue
            garbage = folder
            if not TEMPORARY.fullmatch(folder.name):  # else a killed publisher left it
                garbage = temporary(folder)  # so that a kill leaves no partial artifact under its name
                os.rename(folder, garbage)
            delete(garbage)
        for file in files_below(store.folder, "entries"):
            if file.name.startswith("."):
                file.unlink()
        remove_stale(files_below(store.folder, "locks"))
        return before - size(store.folder)


def _output(path: Path) -> str | None:
    """Return the artifact that an entry's file names, even if the entry is damaged otherwise."""
    try:
        return str(parse_json(read(path))["output"])
    except (ValueError, KeyError, TypeError):
        return None
