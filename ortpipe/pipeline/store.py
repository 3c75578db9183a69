"""The store: artifacts by content, on disk, so that what one run computed every later one takes.

    artifacts/<ab>/<digest>/      an artifact, without its lineage
    entries/<stage>/<key>.json    the stage's result under this key: which artifact, made when and by which run
    damaged/                      what was not as it had been written
    locks/<key>                   held by the process that computes

Writes are atomic. An entry names its artifact by digest, and reading verifies it. Who can write the folder can write
entries; with a key only those that its holders sealed are taken.
"""

import contextlib
import dataclasses
import hmac
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ortpipe.artifact import Artifact, load_artifact, save_artifact
from ortpipe.errors import ModelError
from ortpipe.files import atomic_write
from ortpipe.hashing import digest_of
from ortpipe.pipeline.digest import key_of
from ortpipe.pipeline.locks import Notify, folder_lock, key_lock
from ortpipe.pipeline.trust import VARIABLE, other_writers

T = TypeVar("T")


class Damaged(Exception):
    """What was read is not what was written; never what could not be read."""


@dataclass(frozen=True)
class Entry:
    """A stage's result."""

    stage: str  # under which it is stored, as under its `key`
    key: str
    parts: Mapping[str, Any]  # what the key stands for, see `digest.parts_of`
    output: str  # the artifact's digest
    record: Mapping[str, Any]  # its own line of the lineage
    seconds: float  # it took to compute
    made: float  # when, in seconds since 1970
    run: Mapping[str, str]  # of whom: `folder`, and where it was tracked `mlflow`, the run's id
    about: Mapping[str, Any]  # what the run said of its data, for people
    hmac: str | None = None  # of all the others, where who published had a key


class Store:
    """A folder of results that many processes share; it is made when something is published.

    `run` is who publishes, `about` is kept with every entry for people, and with `key` entries are sealed: others then
    count as not there.
    """

    def __init__(
        self,
        folder: Path,
        run: Mapping[str, str] | None = None,
        about: Mapping[str, Any] | None = None,
        key: bytes | None = None,
    ) -> None:
        self.folder, self._run, self.about, self._key = folder.absolute(), dict(run or {}), dict(about or {}), key

    def lock(self, key: str, notify: Notify) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of a key: the second process waits, and finds the result."""
        return key_lock(self.folder / "locks" / key, notify)

    def find(self, stage: str, key: str) -> Entry | None:
        """Return an entry, without reading its artifact; None where there is none that can be read and is trusted."""
        with contextlib.suppress(OSError, Damaged):
            entry = self._read(self.entry_file(stage, key))
            return entry if entry is not None and self.trusts(entry) else None
        return None

    def trusts(self, entry: Entry) -> bool:
        """Return whether an entry that was read is sealed with the store's key; without a key, all are trusted."""
        return self._key is None or hmac.compare_digest(str(entry.hmac).encode(), self._seal(_fields(entry)).encode())

    def take(self, stage: str, key: str, input: Artifact | None, notify: Notify) -> tuple[Artifact, Entry] | None:
        """Return a stage's result on an input, verified; None where there is none.

        What is damaged is set aside; what cannot be read now stays where it is. `notify` hears of both.
        """
        path = self.entry_file(stage, key)
        self._warn(notify)
        try:
            entry = self.entry(path, notify)
            if entry is None:
                return None
            if not self.trusts(entry):
                notify(f"entries of {self.folder} that are not sealed with this {VARIABLE} count as not there")
                return None
            artifact = self.artifact(entry.output, notify)
        except OSError as error:
            notify(f"{error.filename or path} cannot be read now ({error.strerror or error}): computed again")
            return None
        except Damaged:
            return None
        if artifact is None:
            return None
        with contextlib.suppress(OSError):  # when it was last used, for gc; a read-only store does not record that
            os.utime(path)
        lineage = (*(input.facts.lineage if input is not None else ()), entry.record)
        return artifact.with_lineage(lineage), entry

    def entry(self, path: Path, notify: Notify) -> Entry | None:
        """Return the entry in a file, None where there is none; one that is Damaged is set aside."""
        return self._verified(path, lambda: self._read(path), notify)

    def artifact(self, digest: str, notify: Notify) -> Artifact | None:
        """Return an artifact, verified, None where there is none; as for `entry`."""
        return self._verified(self.artifact_folder(digest), lambda: self._load(digest), notify)

    def publish(
        self, stage: str, key: str, parts: Mapping[str, Any], artifact: Artifact, seconds: float, notify: Notify
    ) -> Entry:
        """Keep a stage's result, or nothing of it; an equal artifact that is there stays, unless it is damaged."""
        digest, record = artifact.digest(), dict(artifact.facts.lineage[-1])
        entry = Entry(stage, key, parts, digest, record, seconds, time.time(), self._run, self.about)
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError, Damaged):
            self.artifact(digest, notify)  # a damaged one makes way
        with folder_lock(self.folder):
            if not self.artifact_folder(digest).is_dir():
                save_artifact(artifact.with_lineage(()), self.artifact_folder(digest), once=True)
            fields = json.loads(json.dumps(_fields(entry)))
            if self._key is not None:
                fields["hmac"] = self._seal(fields)
            atomic_write(self.entry_file(stage, key), json.dumps({**fields, "sha256": _sum(fields)}, indent=1) + "\n")
        self._warn(notify)
        return entry

    def artifact_folder(self, digest: str) -> Path:
        """Return the folder of an artifact."""
        return self.folder / "artifacts" / digest[:2] / digest

    def entries(self, stage: str | None = None, notify: Notify = lambda _: None) -> Iterator[Entry]:
        """Yield the entries of one stage or all, without damaged ones; `notify` hears of what cannot be read now."""
        for path in self.files(stage, notify):
            try:
                entry = self._read(path)
            except Damaged:
                continue
            except OSError as error:
                notify(f"{path} cannot be read now: {error.strerror or error}")
                continue
            if entry is not None:
                yield entry

    def files(self, stage: str | None = None, notify: Notify | None = None) -> list[Path]:
        """Return the files of entries; a folder that cannot be listed raises where there is no `notify`."""
        files, folder = [], self.folder / "entries"
        try:
            for part in [stage] if stage is not None else listed(folder):
                files += [folder / part / name for name in listed(folder / part) if Path(name).suffix == ".json"]
        except OSError as error:
            if notify is None:
                raise
            notify(f"{error.filename} cannot be read now: {error.strerror}")
        return files

    def entry_file(self, stage: str, key: str) -> Path:
        """Return the file of an entry."""
        return self.folder / "entries" / stage / f"{key}.json"

    def _read(self, path: Path) -> Entry | None:
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            fields = json.loads(content)
            digest = fields.pop("sha256")
            entry = Entry(**fields)
            intact = digest == _sum(fields) and entry.key == path.stem == key_of(entry.parts)
            intact = intact and entry.stage == path.parent.name
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(f"An entry must be as it was written: {error}") from error
        if not intact:
            raise Damaged("An entry must have the sum and the key that it was written with.")
        return entry

    def _seal(self, fields: Mapping[str, Any]) -> str:
        """Return the HMAC-SHA256 (hex) of an entry's other fields."""
        return hmac.digest(self._key or b"", _sum(fields).encode(), "sha256").hex()

    def _warn(self, notify: Notify) -> None:
        places = () if self._key is not None else (self.folder, self.folder / "entries", self.folder / "artifacts")
        for place in places:
            if (who := other_writers(place)) is not None:
                fix = f"chmod -R go-w {self.folder}, or give all who share it the same {VARIABLE}"
                notify(f"{place} can be written by {who}, who can so choose your results: {fix}")
                return

    def _load(self, digest: str) -> Artifact | None:
        folder = self.artifact_folder(digest)
        try:
            os.listdir(folder)  # what is missing in a folder that can be listed is missing for good
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return load_artifact(folder, digest)
        except ModelError as error:
            raise Damaged(str(error).splitlines()[0]) from error

    def _verified(self, path: Path, read: Callable[[], T], notify: Notify) -> T:
        """Return what is read; what is damaged is moved out of the way, for its owner to look at."""
        try:
            with folder_lock(self.folder):
                return read()
        except Damaged as error:
            damage = error
        notify(str(damage))
        number, damaged = 0, self.folder / "damaged"
        try:
            with folder_lock(self.folder, exclusive=True):
                with contextlib.suppress(Damaged):
                    return read()  # another process was first
                damaged.mkdir(exist_ok=True)
                while (place := damaged / f"{path.name}.{number}").exists():
                    number += 1
                os.rename(path, place)
        except OSError as error:
            notify(f"{path} is not as it was written and cannot be set aside ({error.strerror}): computed again")
        else:
            notify(f"{path} is not as it was written: set aside in {damaged}, and computed again")
        raise damage


def listed(folder: Path) -> list[str]:
    """Return the names in a folder, none where there is none; unlike `glob`, it does not hide that it cannot look."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _fields(entry: Entry) -> dict[str, Any]:
    """Return what a seal covers."""
    fields = dataclasses.asdict(entry)
    del fields["hmac"]
    return fields


def _sum(fields: Mapping[str, Any]) -> str:
    return digest_of("entry", fields)
