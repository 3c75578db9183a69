"""List, verify and clean the objects of a shared store; `ortpipe/pipeline/gc.py` does the same for its folder."""

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ortpipe.bounded import TEXT
from ortpipe.pipeline.gc import Usage, latest_first
from ortpipe.pipeline.locks import Notify
from ortpipe.pipeline.store import Damaged, Entry, parse_entry
from ortpipe.remote.bucket import modified
from ortpipe.remote.shared import DAY, SharedStore, artifact_name, downloaded, entry_name

ENTRY = re.compile(r"entries/(\w+)/([0-9a-f]{64})\.json")
ARTIFACT = re.compile(r"artifacts/[0-9a-f]{2}/([0-9a-f]{64})/[\w.]+")


def usage(store: SharedStore, notify: Notify) -> list[Usage]:
    """Return the bucket's entries with their usage, the latest used first; damaged ones are left out."""
    artifacts = _artifacts(store)
    sizes = {digest: sum(info["size"] for info in files.values()) for digest, files in artifacts.items()}
    return latest_first(
        Usage(entry, sizes.get(entry.output, 0), modified(info))
        for entry, info, _ in _entries(store)
        if entry is not None
    )


def location(store: SharedStore) -> str:
    """Return the URL of the bucket."""
    return store.bucket.url


def size_of_artifacts(store: SharedStore) -> int:
    """Return the size of the bucket's artifacts in bytes."""
    return sum(info["size"] for files in _artifacts(store).values() for info in files.values())


def verify(store: SharedStore, notify: Notify) -> Counter[str]:
    """Download and verify all entries and their artifacts; damaged ones are deleted. Counted as in `gc.verify`."""
    counts, intact = Counter[str](), dict[str, str]()  # the problem of each artifact, "" if it is intact
    for entry, _, name in list(_entries(store)):
        problem = "its content does not fit its name" if entry is None else intact.get(entry.output)
        if entry is not None and problem is None:
            try:
                with downloaded(store.bucket, entry.output) as artifact:
                    problem = "it no longer has an artifact" if artifact is None else ""
            except Damaged as error:
                problem = str(error)
                for file in store.bucket.list(artifact_name(entry.output)):
                    store.bucket.delete(file)
            intact[entry.output] = problem
        if problem:
            store.bucket.delete(name)
            notify(f"{store.bucket.url}/{name} is damaged ({problem}): deleted")
        counts["damaged" if problem or entry is None else "intact" if store.trusts(entry) else "foreign"] += 1
    return counts


def remove(store: SharedStore, entries: Iterable[Entry]) -> int:
    """Delete entries, their unreferenced artifacts, and other unreferenced objects after a day; return bytes freed.

    A machine may be sending an artifact whose entry follows, so younger ones stay.
    """
    removed = list(entries)
    for entry in removed:
        store.bucket.delete(entry_name(entry.stage, entry.key))
    referenced = {entry.output for entry, _, _ in _entries(store) if entry is not None}
    outputs, old, freed = {entry.output for entry in removed}, time.time() - DAY, 0
    for digest, files in _artifacts(store).items():
        if digest in referenced or (digest not in outputs and max(map(modified, files.values())) > old):
            continue
        for name, info in sorted(files.items()):  # artifact.json first, without which there is no artifact
            store.bucket.delete(name)
            freed += info["size"]
    for name, info in store.bucket.list("locks").items():
        if modified(info) < old:
            store.bucket.delete(name)
    return freed


def _entries(store: SharedStore) -> Iterator[tuple[Entry | None, Mapping[str, Any], str]]:
    """Yield the bucket's entries, None for a damaged one, with fsspec's `info` and the name of each."""
    for name, info in store.bucket.list("entries").items():
        if (match := ENTRY.fullmatch(name)) is None:
            continue
        try:
            content = store.bucket.read(name, TEXT)
            if content is not None:
                yield parse_entry(content, match[1], match[2]), info, name
        except (Damaged, ValueError):
            yield None, info, name


def _artifacts(store: SharedStore) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return the bucket's artifacts by digest: the names of their objects, with fsspec's `info` of each."""
    artifacts: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, info in store.bucket.list("artifacts").items():
        if match := ARTIFACT.fullmatch(name):
            artifacts.setdefault(match[1], {})[name] = info
    return artifacts
