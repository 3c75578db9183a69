"""Write files and folders atomically."""

import contextlib
import os
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}")  # names of `temporary`


def temporary(target: Path) -> Path:
    """Return an unused name next to a target.

    A file created under it gets its permissions from the umask, the folder's setgid bit and its default ACL; `tempfile`
    would exclude other users, and a `chmod` would have to guess the right permissions.
    """
    return target.with_name(f".{target.name}.{os.urandom(8).hex()}")


def atomic_write(path: Path, content: str | bytes) -> Path:
    """Write a file atomically."""
    with atomic_file(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        if path.exists():
            shutil.copymode(path, partial)
    return path


@contextlib.contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """Yield the path of a temporary file next to `target`, which replaces it when the block succeeds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = temporary(target)
    with synced(target.parent):
        try:
            yield partial
            sync(partial)
            os.replace(partial, target)
        finally:  # also on Ctrl-C, no partial file may remain
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(target: Path, *, once: bool = False) -> Iterator[Path]:
    """Yield a temporary folder next to `target` that is renamed to it when the block succeeds.

    An existing folder is replaced; with `once` it is kept, and the new one removed. Files linked into it are already
    synced.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = temporary(target)
    partial.mkdir()
    try:
        yield partial
        for file in (*partial.rglob("*"), partial):
            if file.is_dir() or file.lstat().st_nlink == 1:  # files with several links are already on the disk
                sync(file)
        with synced(target.parent):
            _rename(partial, target, once)
    except BaseException:  # as in atomic_write
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _rename(folder: Path, target: Path, once: bool) -> None:
    if once:
        try:
            os.rename(folder, target)
        except OSError:
            if not target.is_dir():
                raise
            shutil.rmtree(folder)  # another process was first
        return
    if not os.path.lexists(target):
        os.rename(folder, target)
        return
    older = temporary(target)
    os.rename(target, older)
    try:
        os.rename(folder, target)  # a kill before this leaves both complete folders under hidden names
    except BaseException:  # restore the older folder
        os.rename(older, target)
        raise
    with contextlib.suppress(OSError):
        delete(older)


def delete(path: Path) -> None:
    """Remove a file, or a folder and everything in it; of a link, only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def link_files(source: Path, folder: Path, needed: Collection[str], *, without: str) -> bool:
    """Link a folder's files except one into a new folder; return False, leaving it empty, if hard links are impossible.

    External data are copied, because onnx rejects data files with several hard links. Also return False if a file in
    `needed` is missing because the source is being removed.
    """
    try:
        for file in source.iterdir():
            if file.suffix == ".data":
                shutil.copyfile(file, folder / file.name)
            elif file.name != without:
                os.link(file, folder / file.name)
    except OSError:
        linked = False
    else:
        linked = set(needed) <= {file.name for file in folder.iterdir()}
    if not linked:
        for file in folder.iterdir():
            file.unlink()
    return linked


@contextlib.contextmanager
def synced(folder: Path) -> Iterator[None]:
    """Open a folder, and at the end wait until its entries are on the disk; without a free file descriptor, skip it.

    Windows can neither open folders nor needs this.
    """
    if os.name == "nt":
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield
        os.fsync(handle)
    finally:
        os.close(handle)


def sync(path: Path) -> None:
    """Wait until a file, or a folder's entries, are on the disk (Windows can neither sync folders nor needs it)."""
    windows = os.name == "nt"
    if windows and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)  # Windows flushes only files opened for writing
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
