"""The store: artifacts on disk by content, so that later runs reuse what earlier ones computed.

    artifacts/<ab>/<digest>/      an artifact, without its lineage
    entries/<stage>/<key>.json    the stage's result under this key: which artifact, computed when and by which run
    damaged/                      entries and artifacts that failed verification
    locks/<key>                   locked by the process that computes the result

Writes are atomic. An entry names its artifact by digest, and reading verifies it. Any user with write access to the
folder can add entries; with a key, only entries sealed with that key are used.
"""

import contextlib
import dataclasses
import hmac
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ortpipe.artifact import Artifact
from ortpipe.bounded import MOST_BYTES, parse_json, read_below
from ortpipe.doors import later
from ortpipe.errors import ConfigError, ModelError
from ortpipe.facts_json import LineageRecord
from ortpipe.files import atomic_write
from ortpipe.hashing import digest_of
from ortpipe.pipeline.digest import key_of
from ortpipe.pipeline.locks import Notify, folder_lock, key_lock
from ortpipe.settings import checked

if TYPE_CHECKING:  # a dry run reads entries only
    from ortpipe.artifact_folder import load_artifact, save_artifact
else:
    later(__name__)

T = TypeVar("T")
DIGEST = re.compile("[0-9a-f]{64}")
VARIABLE = "ORTPIPE_STORE_KEY"


class Damaged(Exception):
    """The bytes read are not those written (bytes that cannot be read raise OSError)."""


@dataclass(frozen=True)
class Entry:
    """A stage's result."""

    stage: str  # stored under the stage and the `key`
    key: str
    parts: Mapping[str, Any]  # the content of the key, see `digest.parts_of`
    output: str  # the artifact's digest, which becomes a path
    record: Mapping[str, Any]  # its own line of the lineage
    seconds: float  # the time to compute it
    made: float  # when it was computed, in seconds since 1970
    run: Mapping[str, str]  # the run's `folder` and, if it was tracked, its MLflow id `mlflow`
    about: Mapping[str, Any]  # facts about the run's data, for people
    hmac: str | None = None  # of all other fields, if the publisher had a key


class Store:
    """A folder of results that many processes share; the first publication creates it.

    `run` is the publisher, and `about` is stored with every entry for people. With `key`, entries are sealed, and those
    without its seal are ignored.
    """

    def __init__(
        self,
        folder: Path,
        run: Mapping[str, str] | None = None,
        about: Mapping[str, Any] | None = None,
        key: bytes | None = None,
    ) -> None:
        self.folder, self._run, self.about, self._key = folder.absolute(), dict(run or {}), dict(about or {}), key
        self.trouble: str | None = None  # why a part of a shared store cannot be used now

    def lock(self, key: str, notify: Notify) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of a key: a second process waits, and then finds the result."""
        return key_lock(self.folder / "locks" / key, notify)

    def find(self, stage: str, key: str) -> Entry | None:
        """Return an entry, without reading its artifact; None if there is none that is readable and trusted."""
        with contextlib.suppress(OSError, Damaged):
            entry = self._read(self.entry_file(stage, key))
            return entry if entry is not None and self.trusts(entry) else None
        return None

    def has(self, digest: str) -> bool:
        """Return whether the store has an artifact, without verifying it."""
        return self.artifact_folder(digest).is_dir()

    def trusts(self, entry: Entry) -> bool:
        """Return whether an entry is sealed with the store's key; without a key, all are trusted."""
        return self._key is None or hmac.compare_digest(str(entry.hmac).encode(), self._seal(_fields(entry)).encode())

    def take(self, stage: str, key: str, input: Artifact | None, notify: Notify) -> tuple[Artifact, Entry] | None:
        """Return a stage's verified result on an input, and its entry; None if there is none.

        Damaged files are set aside; files that cannot be read now stay. `notify` gets a message about both.
        """
        path = self.entry_file(stage, key)
        self._warn(notify)
        try:
            entry = self.entry(path, notify)
            if entry is None:
                return None
            if not self.trusts(entry):
                notify(f"entries of {self.folder} that are not sealed with this {VARIABLE} are ignored")
                return None
            artifact = self.artifact(entry.output, notify)
        except OSError as error:
            notify(f"{error.filename or path} cannot be read now ({error.strerror or error}): computed again")
            return None
        except Damaged:
            return None
        if artifact is None:
            return None
        with contextlib.suppress(OSError):  # the time of last use, for gc; a read-only store does not record it
            os.utime(path)
        lineage = (*(input.facts.lineage if input is not None else ()), entry.record)
        return artifact.with_lineage(lineage), entry

    def entry(self, path: Path, notify: Notify) -> Entry | None:
        """Return the entry in a file, None if there is no file; a damaged one is set aside and raises Damaged."""
        return self._verified(path, lambda: self._read(path), notify)

    def artifact(self, digest: str, notify: Notify) -> Artifact | None:
        """Return a verified artifact, None if there is none; a damaged one is set aside and raises Damaged."""
        return self._verified(self.artifact_folder(digest), lambda: self._load(digest), notify)

    def publish(
        self, stage: str, key: str, parts: Mapping[str, Any], artifact: Artifact, seconds: float, notify: Notify
    ) -> Entry:
        """Store a stage's result atomically; an equal artifact in the store stays, unless it is damaged."""
        digest, record = artifact.digest(), dict(artifact.facts.lineage[-1])
        entry = Entry(stage, key, parts, digest, record, seconds, time.time(), self._run, self.about)
        fields = json.loads(json.dumps(_fields(entry)))
        if self._key is not None:
            fields["hmac"] = self._seal(fields)
        self.add(entry, artifact, json.dumps({**fields, "sha256": _sum(fields)}, indent=1) + "\n", notify)
        self._warn(notify)
        return entry

    def add(self, entry: Entry, artifact: Artifact, text: str | bytes, notify: Notify) -> None:
        """Write an artifact, unless the store has it, and then the text of its entry."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError, Damaged):
            self.artifact(entry.output, notify)  # sets a damaged one aside
        with folder_lock(self.folder):
            if not self.artifact_folder(entry.output).is_dir():
                save_artifact(artifact.with_lineage(()), self.artifact_folder(entry.output), once=True)
            atomic_write(self.entry_file(entry.stage, entry.key), text)

    def artifact_folder(self, digest: str) -> Path:
        """Return the folder of an artifact."""
        return self.folder / "artifacts" / digest[:2] / digest

    def entries(self, stage: str | None = None, notify: Notify = lambda _: None) -> Iterator[Entry]:
        """Yield the intact entries of one stage or of all; `notify` gets what cannot be read now."""
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
        """Return the files of entries; a folder that cannot be listed is passed to `notify`, or raises without it."""
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
            content = read_below(self.folder, path.relative_to(self.folder).as_posix(), MOST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise Damaged(f"The entry is not valid: {error}") from error
        return parse_entry(content, path.parent.name, path.stem)

    def _seal(self, fields: Mapping[str, Any]) -> str:
        """Return the HMAC-SHA256 (hex) of an entry's other fields."""
        return hmac.digest(self._key or b"", _sum(fields).encode(), "sha256").hex()

    def _warn(self, notify: Notify) -> None:
        places = () if self._key is not None else (self.folder, self.folder / "entries", self.folder / "artifacts")
        for place in places:
            if (who := other_writers(place)) is not None:
                fix = f"chmod -R go-w {self.folder}, or give all who share it the same {VARIABLE}"
                notify(f"{place} can be written by {who}, who can thereby choose your results: {fix}")
                return

    def _load(self, digest: str) -> Artifact | None:
        folder = self.artifact_folder(digest)
        try:
            os.listdir(folder)  # if the folder can be listed, a missing file is damage, not an I/O error
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return load_artifact(folder, digest)
        except ModelError as error:
            raise Damaged(str(error).splitlines()[0]) from error

    def _verified(self, path: Path, read: Callable[[], T], notify: Notify) -> T:
        """Return the result of `read`; on damage, move the path to `damaged/`, where its owner can inspect it."""
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
            notify(f"{path} is damaged and cannot be set aside ({error.strerror}): computed again")
        else:
            notify(f"{path} is damaged: set aside in {damaged}, and computed again")
        raise damage


def parse_entry(content: bytes, stage: str, key: str) -> Entry:
    """Return the entry of a stage and key from its text; raise Damaged if it is not intact, or another's."""
    try:
        fields = parse_json(content)
        digest = fields.pop("sha256")
        entry = Entry(**fields)
        checked(entry.record, LineageRecord, "record")
        intact = digest == _sum(fields) and entry.key == key == key_of(entry.parts)
        intact = intact and entry.stage == stage and DIGEST.fullmatch(entry.output) is not None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"The entry is not valid: {error}") from error
    if not intact:
        raise Damaged("The entry's checksum or key does not match its content.")
    return entry


def listed(folder: Path) -> list[str]:
    """Return the names in a folder, [] if there is none or it is a link; raises if the folder cannot be read."""
    try:
        return [] if folder.is_symlink() else sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _fields(entry: Entry) -> dict[str, Any]:
    """Return the fields that a seal covers."""
    return {name: value for name, value in dataclasses.asdict(entry).items() if name != "hmac"}


def _sum(fields: Mapping[str, Any]) -> str:
    return digest_of("entry", fields)


def key_of_environment(environment: Mapping[str, str]) -> bytes | None:
    """Return the key that seals a store's entries, if it is set; an empty one is an error.

    >>> key_of_environment({}), key_of_environment({"ORTPIPE_STORE_KEY": "long and random"})
    (None, b'long and random')
    """
    key = environment.get(VARIABLE)
    if key is not None and not key.strip():
        raise ConfigError(
            f"{VARIABLE} must hold a secret key.", got="an empty one", fix="Set it, or unset the variable."
        )
    return None if key is None else key.encode("utf-8", "surrogateescape")


def other_writers(folder: Path) -> str | None:
    """Return the users besides the owner with write access to a folder: `everyone`, a group, or None (POSIX only).

    The private group that many systems create for each user does not count.
    """
    try:
        status = folder.stat()
    except OSError:
        return None
    if os.name != "posix" or not status.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        return None
    if status.st_mode & stat.S_IWOTH:
        return "everyone"
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(status.st_gid), pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"group {status.st_gid}"
    private = group.gr_name == user and set(group.gr_mem) <= {user}
    return None if private else f"group {group.gr_name}"
