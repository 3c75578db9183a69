"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


def whole_file(path: Path, content: str | bytes) -> Path:
    """Write a file through a temporary one beside it: write, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync(path.parent)
    return path


@contextlib.contextmanager
def whole_folder(target: Path, *, once: bool = False) -> Iterator[Path]:
    """Give a temporary folder beside `target` that takes its place when the block succeeds.

    An older one goes; with `once` it stays, and the new one goes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield temporary
        for file in (*temporary.iterdir(), temporary):
            _sync(file)
        temporary.chmod(0o755)
        _take_place(temporary, target, once)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync(target.parent)


def _take_place(folder: Path, target: Path, once: bool) -> None:
    if once:
        try:
            os.rename(folder, target)
        except OSError:
            if not target.is_dir():
                raise
            shutil.rmtree(folder)  # another process was first
        return
    older = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    if target.exists():
        os.rename(target, older)  # a kill here leaves both, each whole
    os.rename(folder, target)
    shutil.rmtree(older, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
