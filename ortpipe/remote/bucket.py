"""Objects below a URL, by fsspec: read with bounds, written whole, claimed by one process at a time."""

import contextlib
import os
import platform
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec

from ortpipe.bounded import check_size
from ortpipe.files import temporary
from ortpipe.pipeline.locks import Notify

CHUNK = 2**25  # bytes read at once
PAUSE = 60.0  # seconds before an unreachable bucket is tried again
BEAT, STALE = 10.0, 60.0  # a claim is renewed after BEAT seconds; one that is not renewed for STALE seconds is void
WHOLE = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"}  # an object appears under its name when it is complete
S3: dict[str, Any] = {"config_kwargs": {"connect_timeout": 3, "read_timeout": 15, "retries": {"max_attempts": 2}}}
OPTIONS: dict[str, dict[str, Any]] = {"s3": S3, "s3a": S3, "file": {"auto_mkdir": True}}
TIMES = ("LastModified", "mtime", "last_modified", "updated", "created")  # names of fsspec's file systems

_paused: dict[str, tuple[float, str]] = {}  # by URL: when an unreachable bucket is tried again, and why it is paused


class Unreachable(Exception):
    """A bucket cannot be used now; the text is the reason."""


class Bucket:
    """The objects below a URL; `Unreachable` is raised for any failure, and at once for a while after one."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._scheme = urlsplit(url).scheme

    @contextlib.contextmanager
    def _reached(self) -> Iterator[tuple[Any, str]]:
        """Yield fsspec's file system and the path of the URL in it."""
        until, reason = _paused.get(self.url, (0.0, ""))
        if time.monotonic() < until:
            raise Unreachable(reason)
        listings = {"use_listings_cache": False} if self._scheme in WHOLE else {}
        try:
            files, root = fsspec.url_to_fs(self.url, **OPTIONS.get(self._scheme, {}), **listings)
            yield files, root.rstrip("/")
        except FileExistsError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}"
            if not isinstance(error, PermissionError | FileNotFoundError | NotImplementedError):
                _paused[self.url] = time.monotonic() + PAUSE, reason
            raise Unreachable(reason) from error

    def info(self, name: str) -> Mapping[str, Any] | None:
        """Return the facts about an object, such as its `size`; None if there is none, or a folder or a link."""
        with self._reached() as (files, root):
            try:
                info: Mapping[str, Any] = files.info(f"{root}/{name}")
            except FileNotFoundError:
                return None
        return info if info["type"] == "file" and not info.get("islink") else None

    def modified(self, name: str) -> float | None:
        """Return when an object was written, in seconds since 1970; None if there is none."""
        info = self.info(name)
        return None if info is None else modified(info)

    def list(self, folder: str) -> dict[str, Mapping[str, Any]]:
        """Return the names of all objects below a folder, with `info` of each."""
        with self._reached() as (files, root):
            infos = files.find(f"{root}/{folder}", detail=True)
        return {path[len(root) + 1 :]: info for path, info in infos.items()}

    def read(self, name: str, most: int) -> bytes | None:
        """Return an object's bytes, None if there is none; one with more bytes than `most` raises ValueError."""
        return b"".join(parts) if (parts := self._parts(name, most)) is not None else None

    def download(self, name: str, target: Path, most: int) -> int | None:
        """Write an object to a new file and return its size; None and ValueError as in `read`."""
        parts = self._parts(name, most)
        if parts is None:
            return None
        with target.open("xb") as file:
            return sum(map(file.write, parts))

    def _parts(self, name: str, most: int) -> Iterator[bytes] | None:
        info = self.info(name)
        if info is None:
            return None
        size = int(info["size"])
        check_size(size, most)

        def part(start: int) -> bytes:
            with self._reached() as (files, root):
                content: bytes = files.cat_file(f"{root}/{name}", start=start, end=min(start + CHUNK, size))
                return content[:CHUNK]

        return map(part, range(0, size, CHUNK))

    def write(self, name: str, content: bytes | Path) -> None:
        """Write an object whole: bytes, or the content of a file."""
        with self._reached() as (files, root):
            target = f"{root}/{name}"
            place = target if self._scheme in WHOLE else temporary(Path(target)).as_posix()
            if isinstance(content, Path):
                files.put_file(str(content), place)
            else:
                files.pipe_file(place, content)
            if place != target:
                files.mv(place, target)

    def create(self, name: str, content: bytes) -> bool:
        """Write a new object; return False if there is one."""
        try:
            with self._reached() as (files, root):
                files.pipe_file(f"{root}/{name}", content, mode="create")
        except FileExistsError:
            return False
        return True

    def delete(self, name: str) -> None:
        """Remove an object, if there is one."""
        with self._reached() as (files, root), contextlib.suppress(FileNotFoundError):
            files.rm_file(f"{root}/{name}")

    @contextlib.contextmanager
    def claim(self, key: str, notify: Notify) -> Iterator[None]:
        """Hold the claim to compute a key, after waiting for another machine that holds it.

        A claim only saves work: without one, as when the bucket is unreachable, two machines may compute the same.
        """
        name, holder = f"locks/{key}", f"process {os.getpid()} on {platform.node()} {os.urandom(4).hex()}"
        try:
            self._wait(name, holder, notify)
        except Unreachable:
            yield
            return
        ended = threading.Event()
        beats = threading.Thread(target=self._renew, args=(name, holder, ended), daemon=True)
        beats.start()
        try:
            yield
        finally:
            ended.set()
            beats.join(BEAT)
            with contextlib.suppress(Unreachable, ValueError):
                if (self.read(name, 1000) or b"").startswith(holder.encode()):
                    self.delete(name)

    def _wait(self, name: str, holder: str, notify: Notify) -> None:
        last, since, pause = b"", time.monotonic(), 0.1
        while not self.create(name, holder.encode()):
            try:
                now = self.read(name, 1000)
            except ValueError:
                now = b""  # no claim of ortpipe's
            if now is not None and now != last:
                last, since = now, time.monotonic()
                other = "".join(c if c.isprintable() else "?" for c in now.decode(errors="replace")).rpartition(" ")[0]
                notify(f"waiting for {other or 'another process'}, which computes the same")
            elif time.monotonic() - since > STALE:
                self.delete(name)
            time.sleep(pause)
            pause = min(pause * 1.5, 2.0)

    def _renew(self, name: str, holder: str, ended: threading.Event) -> None:
        beats = 0
        while not ended.wait(BEAT):
            beats += 1
            with contextlib.suppress(Unreachable, ValueError):
                if not (self.read(name, 1000) or b"").startswith(holder.encode()) or ended.is_set():
                    return
                self.write(name, f"{holder}{'.' * (beats % 100)}".encode())


def modified(info: Mapping[str, Any]) -> float:
    """Return when an object was written, from fsspec's `info`."""
    value = next((info[name] for name in TIMES if name in info), 0.0)
    return value.timestamp() if isinstance(value, datetime) else float(value)
