"""The store of many machines: a local folder in front of a bucket."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ortpipe.artifact import Artifact
from ortpipe.artifact_folder import load_artifact
from ortpipe.bounded import TEXT, has_file
from ortpipe.errors import ModelError
from ortpipe.pipeline.locks import Notify
from ortpipe.pipeline.store import VARIABLE, Damaged, Entry, Store, parse_entry
from ortpipe.remote.bucket import Bucket, Unreachable

RECORD = "artifact.json"
FILES = ("model.onnx", "model.onnx.data", "tensors.safetensors", RECORD)  # sent in this order
MOST = 2**36  # bytes of an artifact
DAY = 86400.0  # an entry in use is sent again after a day, so that the time of its object shows its last use


class SharedStore(Store):
    """A store whose misses are looked up in a bucket, and which sends its results there.

    If the bucket is unreachable, the folder is used alone. Each use of an entry sends it if the bucket lacks it.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        run: Mapping[str, str] | None = None,
        about: Mapping[str, Any] | None = None,
        key: bytes | None = None,
    ) -> None:
        super().__init__(folder, run, about, key)
        self.bucket = Bucket(url)
        self._unsent: dict[tuple[str, str], Entry] = {}
        self._replace: set[str] = set()  # keys whose objects are damaged, or not sealed with this key

    @contextlib.contextmanager
    def lock(self, key: str, notify: Notify) -> Iterator[None]:
        """Hold the lock of a key on this machine, and its claim in the bucket."""
        with super().lock(key, notify), self.bucket.claim(key, notify):
            yield

    def find(self, stage: str, key: str) -> Entry | None:
        """Return an entry of the folder or of the bucket; see `Store.find`."""
        entry = super().find(stage, key)
        try:
            if entry is None and (content := self.bucket.read(entry_name(stage, key), TEXT)) is not None:
                entry = parse_entry(content, stage, key)
        except Unreachable as error:
            self._report(error, None)
        except (Damaged, ValueError):
            pass
        return entry if entry is not None and self.trusts(entry) else None

    def has(self, digest: str) -> bool:
        """Return whether the folder or the bucket has an artifact."""
        try:
            return super().has(digest) or self.bucket.info(f"{artifact_name(digest)}/{RECORD}") is not None
        except Unreachable as error:
            self._report(error, None)
            return False

    def take(self, stage: str, key: str, input: Artifact | None, notify: Notify) -> tuple[Artifact, Entry] | None:
        """Return a verified result, from the bucket if the folder lacks it; see `Store.take`."""
        cached = super().take(stage, key, input, notify)
        if cached is None:
            return super().take(stage, key, input, notify) if self._receive(stage, key, notify) else None
        self._send(cached[1], notify)
        return cached

    def publish(
        self, stage: str, key: str, parts: Mapping[str, Any], artifact: Artifact, seconds: float, notify: Notify
    ) -> Entry:
        """Store a result in the folder, and send it to the bucket."""
        entry = super().publish(stage, key, parts, artifact, seconds, notify)
        self._send(entry, notify)
        return entry

    def _receive(self, stage: str, key: str, notify: Notify) -> bool:
        """Copy an entry and its artifact from the bucket into the folder, verified; return whether it is there now."""
        place = f"{self.bucket.url}/{entry_name(stage, key)}"
        try:
            content = self.bucket.read(entry_name(stage, key), TEXT)
            entry = None if content is None else parse_entry(content, stage, key)
            if content is None or entry is None:
                return False
            if not self.trusts(entry):
                self._replace.add(key)
                notify(f"entries of {self.bucket.url} that are not sealed with this {VARIABLE} are ignored")
                return False
            with downloaded(self.bucket, entry.output) as artifact:
                if artifact is not None:
                    self.add(entry, artifact, content, notify)
                return artifact is not None
        except Unreachable as error:
            self._report(error, notify)
        except (Damaged, ValueError) as error:
            self._replace.add(key)
            notify(f"{place} is damaged ({error}): computed again")
        except OSError as error:
            notify(f"{place} cannot be stored here ({error.strerror or error}): computed again")
        return False

    def _send(self, entry: Entry, notify: Notify) -> None:
        """Send an entry that the bucket may lack, and those that could not be sent before."""
        self._unsent[entry.stage, entry.key] = entry
        try:
            for place, unsent in list(self._unsent.items()):
                self._send_one(unsent)
                del self._unsent[place]
                self._replace.discard(unsent.key)
        except Unreachable as error:
            self._report(error, notify)
        except OSError as error:
            notify(f"{error.filename or self.folder} cannot be sent ({error.strerror or error})")

    def _send_one(self, entry: Entry) -> None:
        name, below = entry_name(entry.stage, entry.key), artifact_name(entry.output)
        replaced = entry.key in self._replace
        written = None if replaced else self.bucket.modified(name)
        if written is not None and time.time() - written < DAY:
            return
        content = self.entry_file(entry.stage, entry.key).read_bytes()
        if replaced or self.bucket.info(f"{below}/{RECORD}") is None:
            folder = self.artifact_folder(entry.output)
            for file in FILES:
                if has_file(folder, file):
                    self.bucket.write(f"{below}/{file}", folder / file)
        self.bucket.write(name, content)  # last: readers begin with the entry

    def _report(self, error: Unreachable, notify: Notify | None) -> None:
        """Report once that the bucket is unreachable."""
        first = self.trouble is None
        self.trouble = f"{self.bucket.url} cannot be used ({error}): {self.folder} is used alone, and sent on later use"
        if first and notify is not None:
            notify(self.trouble)


def entry_name(stage: str, key: str) -> str:
    """Return the name of an entry's object."""
    return f"entries/{stage}/{key}.json"


def artifact_name(digest: str) -> str:
    """Return the folder of an artifact's objects."""
    return f"artifacts/{digest[:2]}/{digest}"


@contextlib.contextmanager
def downloaded(bucket: Bucket, digest: str) -> Iterator[Artifact | None]:
    """Yield an artifact of a bucket after verification, from a temporary folder; None if there is none.

    Raises:
        Damaged: it is not the artifact with this digest, or too large.
    """
    with tempfile.TemporaryDirectory(prefix="ortpipe-", ignore_cleanup_errors=True) as temporary:
        room = min(MOST, shutil.disk_usage(temporary).free // 2)
        try:
            for file in reversed(FILES):
                size = bucket.download(f"{artifact_name(digest)}/{file}", Path(temporary, file), room)
                if size is None and file == RECORD:
                    yield None
                    return
                room -= size or 0
            artifact = load_artifact(temporary, digest)
        except (ModelError, ValueError) as error:
            raise Damaged(str(error).splitlines()[0]) from error
        yield artifact
