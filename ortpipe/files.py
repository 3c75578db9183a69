"""Files and folders that appear whole or not at all."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}")  # the names that `temporary` gives


def temporary(target: Path) -> Path:
    """Return a name beside a target that nobody has.

    What is made under it gets the rights that the umask, the folder's setgid bit and its default ACL give: `tempfile`
    would keep others out, and a `chmod` would have to know what was asked for.
    """
    return target.with_name(f".{target.name}.{os.urandom(8).hex()}")


def atomic_write(path: Path, content: str | bytes) -> Path:
    """Write a file through a temporary one beside it: write, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    partial = temporary(path)
    try:
        with open(partial, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:  # Ctrl-C too must leave nothing half-written
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)
    return path


@contextlib.contextmanager
def atomic_folder(target: Path, *, once: bool = False) -> Iterator[Path]:
    """Give a temporary folder beside `target` that takes its place when the block succeeds.

    An older one goes; with `once` it stays, and the new one goes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = temporary(target)
    partial.mkdir()
    try:
        yield partial
        for file in (*partial.rglob("*"), partial):
            sync(file)
        _take_place(partial, target, once)
    except BaseException:  # as in atomic_write
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync(target.parent)


def _take_place(folder: Path, target: Path, once: bool) -> None:
    if once:
        try:
            os.rename(folder, target)
        except OSError:
            if not target.is_dir():
                raise
            shutil.rmtree(folder)  # another process was first
        return
    if not target.exists():
        os.rename(folder, target)
        return
    older = temporary(target)
    os.rename(target, older)
    try:
        os.rename(folder, target)  # a kill before it leaves both, each whole, under hidden names
    except BaseException:  # whatever stopped it, the older folder goes back to its place
        os.rename(older, target)
        raise
    shutil.rmtree(older, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk; Windows opens no folders, and keeps their names."""
    windows = os.name == "nt"
    if windows and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)  # Windows flushes only what may be written
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
