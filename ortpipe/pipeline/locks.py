"""Locks on files, between processes and machines of one file system; the system releases those of a dead process."""

import contextlib
import errno
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

Notify = Callable[[str], None]


@contextlib.contextmanager
def lock(path: Path, *, busy: Notify, missing: Notify) -> Iterator[None]:
    """Hold a file's exclusive lock while the block runs; the file is made for it, and removed after it.

    If another process holds it, `busy` is called with who that is; it is waited for then, unless `busy` raises. Where
    no lock can be had (a read-only folder, a file system without locks), `missing` is called with the reason, and the
    block runs without.
    """
    held = False
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            while not held:
                stack.close()
                handle = stack.enter_context(_opened(path))
                if not _try_lock(handle):
                    busy(_holder(handle))
                    _try_lock(handle, wait=True)
                held = _is_at(handle, path)  # else whoever held the lock has removed its file
            with contextlib.suppress(OSError):  # a full disk still locks, and so does a file of another user
                os.truncate(handle, 0)
                os.write(handle, f"process {os.getpid()} on {platform.node()}".encode())
        except OSError as error:
            stack.close()
            missing(error.strerror or str(error))
        try:
            yield
        finally:
            if held:
                with contextlib.suppress(OSError):  # the lock goes with the handle, whether or not the file can go
                    path.unlink()


def key_lock(path: Path, notify: Notify) -> contextlib.AbstractContextManager[None]:
    """Hold the exclusive lock of a key, waiting for another process that holds it.

    Without locks the block runs all the same: files are written atomically.
    """
    return lock(
        path,
        busy=lambda holder: notify(f"waiting for {holder}, which computes {path.name[:8]} too"),
        missing=lambda why: notify(f"no lock on {path.parent}: {why}; jobs beside this one may compute the same"),
    )


@contextlib.contextmanager
def folder_lock(folder: Path, *, exclusive: bool = False) -> Iterator[None]:
    """Hold a folder's own lock: shared with others (readers and publishers), or exclusive (who removes)."""
    with contextlib.ExitStack() as stack:
        try:
            handle = stack.enter_context(_opened(folder / ".lock"))
            _try_lock(handle, shared=not exclusive, wait=True)
        except OSError:  # a file system without locks, or a folder that is read-only: nobody removes anything there
            if exclusive:
                raise
        yield


def remove_stale(folder: Path) -> None:
    """Remove the files of locks that nobody holds, which processes that were killed left behind."""
    for path in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError), _opened(path) as handle:
            if _try_lock(handle) and _is_at(handle, path):
                with contextlib.suppress(PermissionError):  # Windows removes no file that is open
                    path.unlink()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open the file of a lock, which is let go in the end, also where a wait ends with Ctrl-C."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)  # network file systems lock what may be written
    except PermissionError as error:
        try:
            handle = os.open(path, os.O_RDONLY)  # another user's
        except FileNotFoundError:
            raise error from None
    try:
        yield handle
    finally:
        with contextlib.suppress(ImportError):
            from portalocker import LockException, unlock

            with contextlib.suppress(LockException):
                unlock(handle)  # after closing only, a process that was forked meanwhile would still hold it
        os.close(handle)


def _try_lock(handle: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock a file that is open; return whether that was done, which it was if it may wait."""
    try:
        import portalocker
    except ImportError as error:
        raise OSError(errno.ENOSYS, f"{error}") from error
    flags = portalocker.LockFlags
    kind = flags.SHARED if shared else flags.EXCLUSIVE
    while True:
        try:
            portalocker.lock(handle, kind if wait else kind | flags.NON_BLOCKING)
        except portalocker.AlreadyLocked:
            if not wait:  # else Windows gave up after ten seconds, and is asked again
                return False
        except portalocker.LockException as error:
            cause = error.__cause__
            raise (cause if isinstance(cause, OSError) else OSError(errno.ENOLCK, f"{error}")) from None
        else:
            return True


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
