"""File locks between processes and machines of one file system; the system releases those of a dead process."""

import contextlib
import errno
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

Notify = Callable[[str], None]


@contextlib.contextmanager
def lock(path: Path, *, busy: Notify, missing: Notify) -> Iterator[None]:
    """Hold a file's exclusive lock while the block runs; the file is created before and removed after it.

    If another process holds it, call `busy` with that process; unless `busy` raises, wait for the lock. If locking is
    impossible (a read-only folder, a file system without locks), call `missing` with the reason and run the block
    without a lock.
    """
    locked = False
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            while not locked:
                stack.close()
                handle = stack.enter_context(_open(path))
                if not _try_lock(handle):
                    busy(_holder(handle))
                    _try_lock(handle, wait=True)
                locked = _is_at(handle, path)  # if not, the previous holder removed the file
            with contextlib.suppress(OSError):  # the text is optional: a full disk locks, too, and another user's file
                os.truncate(handle, 0)
                os.write(handle, f"process {os.getpid()} on {platform.node()}".encode())
        except OSError as error:
            stack.close()
            missing(error.strerror or str(error))
        try:
            yield
        finally:
            if locked:
                with contextlib.suppress(OSError):  # closing the handle releases the lock in any case
                    path.unlink()


def key_lock(path: Path, notify: Notify) -> contextlib.AbstractContextManager[None]:
    """Hold the exclusive lock of a key, after waiting for another process that holds it.

    If locking is impossible, the block runs anyway: files are written atomically.
    """
    return lock(
        path,
        busy=lambda holder: notify(f"waiting for {holder}, which computes the same"),
        missing=lambda why: notify(f"no lock on {path.parent}: {why}; other jobs may compute the same"),
    )


@contextlib.contextmanager
def folder_lock(folder: Path, *, exclusive: bool = False) -> Iterator[None]:
    """Hold a folder's lock: shared (to read and publish) or exclusive (to remove)."""
    with contextlib.ExitStack() as stack:
        try:
            handle = stack.enter_context(_open(folder / ".lock"))
            _try_lock(handle, shared=not exclusive, wait=True)
        except OSError:  # a file system without locks, or a read-only folder, from which nothing is removed
            if exclusive:
                raise
        yield


def remove_stale(paths: Iterable[Path]) -> None:
    """Remove lock files that no process holds, which killed ones left."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError), _open(path) as handle:
            if _try_lock(handle) and _is_at(handle, path):
                with contextlib.suppress(PermissionError):  # Windows does not remove open files
                    path.unlink()


@contextlib.contextmanager
def _open(path: Path) -> Iterator[int]:
    """Open a lock's file; unlock and close it at the end, also if Ctrl-C interrupts a wait."""
    no_link = getattr(os, "O_NOFOLLOW", 0)  # a lock's file is emptied and removed
    try:  # network file systems lock only files opened for writing
        handle = os.open(path, os.O_RDWR | os.O_CREAT | no_link, 0o666)
    except PermissionError as error:
        try:
            handle = os.open(path, os.O_RDONLY | no_link)  # another user's file
        except FileNotFoundError:
            raise error from None
    try:
        yield handle
    finally:
        with contextlib.suppress(ImportError):
            from portalocker import LockException, unlock

            with contextlib.suppress(LockException):
                unlock(handle)  # closing is not enough: a process forked in the meantime would still hold it
        os.close(handle)


def _try_lock(handle: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file; return whether it is locked, which it always is after waiting."""
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
            if not wait:  # Windows gives up waiting after ten seconds: try again
                return False
        except portalocker.LockException as error:
            cause = error.__cause__
            raise (cause if isinstance(cause, OSError) else OSError(errno.ENOLCK, f"{error}")) from None
        else:
            return True


def _holder(handle: int) -> str:
    with contextlib.suppress(OSError):  # Windows does not let other processes read a locked file
        os.lseek(handle, 0, os.SEEK_SET)
        return os.read(handle, 200).decode(errors="replace") or "another process"
    return "another process"


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
