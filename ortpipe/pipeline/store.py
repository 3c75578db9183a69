"""The store: artifacts by content, on disk, so that what one run computed every later one takes.

    artifacts/<ab>/<digest>/      an artifact, without its lineage
    entries/<stage>/<key>.json    the stage's result under this key: which artifact, made when and by which run
    damaged/                      what was not as it had been written
    locks/<key>                   held by the process that computes

Folders and files appear whole. An entry names its artifact by digest, and reading verifies it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortpipe.files import whole_file
from ortpipe.pipeline.digest import key_of
from ortpipe.pipeline.locks import Say, alone, together

if TYPE_CHECKING:
    from ortpipe.artifact import Artifact


@dataclass(frozen=True)
class Entry:
    """A stage's result.

    Attributes:
        stage, key: what it is stored under.
        parts: what the key stands for (see `digest.parts_of`).
        output: the artifact's digest.
        record: its own line of the lineage.
        seconds: it took to compute.
        made: when, in seconds since 1970.
        run: of whom: `folder`, and where it was tracked `mlflow`, the run's id.
        about: what the run said of its data, for people.
    """

    stage: str
    key: str
    parts: Mapping[str, Any]
    output: str
    record: Mapping[str, Any]
    seconds: float
    made: float
    run: Mapping[str, str]
    about: Mapping[str, Any]


class Store:
    """A folder of results that many processes share.

    Args:
        folder: where; made when something is published.
        run: who publishes.
        about: what is kept with every entry, for people.
    """

    def __init__(
        self, folder: Path, run: Mapping[str, str] | None = None, about: Mapping[str, Any] | None = None
    ) -> None:
        self.folder, self._run, self.about = folder.absolute(), dict(run or {}), dict(about or {})

    def alone(self, key: str, say: Say) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of a key: who comes second waits, and finds the result."""
        return alone(self.folder / "locks" / key, say)

    def find(self, stage: str, key: str) -> Entry | None:
        """Return an entry, without reading its artifact."""
        return self._read(self.place(stage, key))

    def take(self, stage: str, key: str, given: Artifact | None, say: Say) -> tuple[Artifact, Entry] | None:
        """Return a stage's result on an input, verified; None where there is none.

        What is damaged is set aside, and said.
        """
        path = self.place(stage, key)
        if not os.access(path, os.R_OK):
            return None
        with together(self.folder):
            entry = self.entry(path, say)
            artifact = self.artifact(entry.output, say) if entry is not None else None
        if entry is None or artifact is None:
            return None
        with contextlib.suppress(OSError):  # when it was last of use, for gc; a read-only store keeps no such book
            os.utime(path)
        lineage = (*(given.facts.lineage if given is not None else ()), entry.record)
        return dataclasses.replace(artifact, facts=dataclasses.replace(artifact.facts, lineage=lineage)), entry

    def entry(self, path: Path, say: Say) -> Entry | None:
        """Return the entry in a file; one that is not as it was written is set aside."""
        entry = self._read(path)
        if entry is None and os.access(path, os.R_OK):
            self._set_aside(path, say)
        return entry

    def artifact(self, digest: str, say: Say) -> Artifact | None:
        """Return an artifact, verified; one that is not as it was written is set aside."""
        from ortpipe.errors import ModelError
        from ortpipe.graph.serial import load_artifact

        folder = self.path(digest)
        if not os.access(folder, os.R_OK):
            return None
        try:
            return load_artifact(folder, digest)
        except ModelError as error:
            say(str(error).splitlines()[0])
        self._set_aside(folder, say)
        return None

    def publish(
        self, stage: str, key: str, parts: Mapping[str, Any], artifact: Artifact, seconds: float, say: Say
    ) -> Entry:
        """Keep a stage's result; an equal artifact that is there already stays, unless it is damaged.

        Raises:
            OSError: it cannot be written; nothing is left of it.
        """
        from ortpipe.graph.serial import save_artifact

        digest, record = artifact.digest(), dict(artifact.facts.lineage[-1])
        entry = Entry(stage, key, parts, digest, record, seconds, time.time(), self._run, self.about)
        self.folder.mkdir(parents=True, exist_ok=True)
        with together(self.folder):
            if self.artifact(digest, say) is None:
                bare = dataclasses.replace(artifact, facts=dataclasses.replace(artifact.facts, lineage=()))
                save_artifact(bare, self.path(digest), once=True)
            whole_file(self.place(stage, key), _sealed(dataclasses.asdict(entry)))
        return entry

    def path(self, digest: str) -> Path:
        """Return the folder of an artifact."""
        return self.folder / "artifacts" / digest[:2] / digest

    def entries(self, stage: str | None = None) -> Iterator[Entry]:
        """Yield what is stored, of one stage or all; what cannot be read is left out."""
        for path in sorted((self.folder / "entries").glob(f"{stage or '*'}/*.json")):
            entry = self._read(path)
            if entry is not None:
                yield entry

    def place(self, stage: str, key: str) -> Path:
        """Return the file of an entry."""
        return self.folder / "entries" / stage / f"{key}.json"

    def _read(self, path: Path) -> Entry | None:
        try:
            written = json.loads(path.read_text(encoding="utf-8"))
            said = written.pop("sha256")
            entry = Entry(**written)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        whole = said == _sum(written) and entry.key == path.stem == key_of(entry.parts)
        return entry if whole else None

    def _set_aside(self, path: Path, say: Say) -> None:
        """Move what is damaged out of the way, for its owner to look at."""
        number, damaged = 0, self.folder / "damaged"
        try:
            damaged.mkdir(exist_ok=True)
            while (place := damaged / f"{path.name}.{number}").exists():
                number += 1
            os.rename(path, place)
            say(f"{path} is not as it was written: set aside in {damaged}, and computed again")
        except FileNotFoundError:
            return  # another process was first
        except OSError as error:
            say(f"{path} is not as it was written and cannot be set aside ({error.strerror}): computed again")


def _sum(written: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()


def _sealed(written: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(written))
    return json.dumps({**plain, "sha256": _sum(plain)}, indent=1) + "\n"
