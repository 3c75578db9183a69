"""Locks on files, between processes and machines of one file system; a holder that dies has let go."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

Say = Callable[[str], None]


@contextlib.contextmanager
def lock(path: Path, *, busy: Say, missing: Say) -> Iterator[None]:
    """Hold a file's exclusive lock while the block runs; the file is made for it, and removed after it.

    The operating system lets go for a process that dies, however it dies.

    Args:
        path: the file.
        busy: called with who holds the lock, if another process does; then that one is waited for, unless this raises.
        missing: called with the reason where no lock can be had (a folder that is read-only, a file system without
            locks); the block runs without.
    """
    handle = _held(path, busy, missing)
    try:
        yield
    finally:
        if handle is not None:
            with contextlib.suppress(OSError):  # the lock goes with the handle; the file is a courtesy
                path.unlink()
            _let_go(handle)


def alone(path: Path, say: Say) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of a key; where another process holds it, say so and wait.

    Without locks, say so and go on: files are still published whole.
    """
    return lock(
        path,
        busy=lambda holder: say(f"waiting for {holder}, which computes {path.name[:8]} too"),
        missing=lambda why: say(f"no lock on {path.parent}: {why}; jobs beside this one may compute the same"),
    )


def forget(folder: Path) -> None:
    """Remove the files of locks that nobody holds, which processes that were killed left behind."""
    for path in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            handle = _opened(path)
            try:
                if _locked(handle) and _is_at(handle, path):
                    with contextlib.suppress(PermissionError):  # Windows removes no file that is open
                        path.unlink()
            finally:
                _let_go(handle)


@contextlib.contextmanager
def together(folder: Path, *, exclusive: bool = False) -> Iterator[None]:
    """Hold a folder's own lock with others (readers and publishers), or exclusively (who removes)."""
    try:
        handle = _opened(folder / ".lock")
    except OSError:
        if exclusive:
            raise
        yield  # read-only: nobody can remove anything either
        return
    try:
        try:
            _locked(handle, shared=not exclusive, wait=True)
        except OSError:  # a file system without locks
            if exclusive:
                raise
        yield
    finally:
        _let_go(handle)


def _held(path: Path, busy: Say, missing: Say) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            handle = _opened(path)
            try:
                if not _locked(handle):
                    busy(_holder(handle))
                    _locked(handle, wait=True)
                if _is_at(handle, path):  # a holder that let go has removed the file that it held
                    with contextlib.suppress(OSError):  # a full disk still locks, and so does a file of another user
                        os.truncate(handle, 0)
                        os.write(handle, f"process {os.getpid()} on {platform.node()}".encode())
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)
    except OSError as error:
        missing(error.strerror or str(error))
        return None


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)  # network file systems lock what may be written
    except PermissionError:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY)  # another user's
        raise


def _locked(handle: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock a file that is open; return whether that was done, which it was if it may wait.

    Raises:
        OSError: the file system, or this Python, has no locks.
    """
    try:
        from portalocker import AlreadyLocked, LockException, LockFlags
        from portalocker import lock as lock_file
    except ImportError as error:
        raise OSError(errno.ENOSYS, f"{error}") from error
    kind = LockFlags.SHARED if shared else LockFlags.EXCLUSIVE
    while True:
        try:
            lock_file(handle, kind if wait else kind | LockFlags.NON_BLOCKING)
        except AlreadyLocked:
            if not wait:  # else Windows gave up after ten seconds, and is asked again
                return False
        except LockException as error:
            cause = error.__cause__
            raise (cause if isinstance(cause, OSError) else OSError(errno.ENOLCK, f"{error}")) from None
        else:
            return True


def _let_go(handle: int) -> None:
    with contextlib.suppress(ImportError):
        from portalocker import LockException, unlock

        with contextlib.suppress(LockException):
            unlock(handle)  # closing alone would leave it to a process that was forked meanwhile
    os.close(handle)


def _holder(handle: int) -> str:
    with contextlib.suppress(OSError):  # Windows lets nobody else read what is locked
        os.lseek(handle, 0, os.SEEK_SET)
        return os.read(handle, 200).decode(errors="replace") or "another process"
    return "another process"


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
