"""One lock per key, between processes and machines of one file system; a holder that dies has let go."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

Say = Callable[[str], None]


@contextlib.contextmanager
def alone(path: Path, say: Say) -> Iterator[None]:
    """Hold a lock while the block runs; where another process holds it, say so and wait.

    The operating system lets go for a process that dies, however it dies. Where locks cannot be had (a folder that is
    read-only, a file system without them), say so and go on: files are still published whole.
    """
    handle = _held(path, say)
    try:
        yield
    finally:
        if handle is not None:
            with contextlib.suppress(OSError):  # the lock goes with the handle; the file is a courtesy
                path.unlink()
            _let_go(handle)


def forget(folder: Path) -> None:
    """Remove the files of locks that nobody holds, which processes that were killed left behind."""
    for path in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError, BlockingIOError):  # gone, or held
            handle = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(handle, path):
                    path.unlink()
            finally:
                os.close(handle)


def _held(path: Path, say: Say) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                _lock(handle, path, say)
                if _is_at(handle, path):  # a holder that let go has removed the file that it held
                    with contextlib.suppress(OSError):  # a full disk still locks
                        os.truncate(handle, 0)
                        os.write(handle, f"process {os.getpid()} on {platform.node()}".encode())
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)
    except OSError as error:
        say(f"no lock on {path.parent}: {error.strerror}; jobs beside this one may compute the same")
        return None


def _lock(handle: int, path: Path, say: Say) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 200, 0).decode(errors="replace") or "another process"
        say(f"waiting for {holder}, which computes {path.name[:8]} too")
        fcntl.flock(handle, fcntl.LOCK_EX)


def _let_go(handle: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing alone would leave it to a process that was forked meanwhile
    os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def together(folder: Path, *, exclusive: bool = False) -> Iterator[None]:
    """Hold a folder's own lock with others (readers and publishers), or exclusively (who removes)."""
    try:
        mode = os.O_RDWR if exclusive else os.O_RDONLY  # what network file systems ask for
        handle = os.open(folder / ".lock", mode | os.O_CREAT, 0o644)
    except OSError:
        if exclusive:
            raise
        yield  # read-only: nobody can remove anything either
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        except OSError:  # a file system without locks
            if exclusive:
                raise
        yield
    finally:
        _let_go(handle)
