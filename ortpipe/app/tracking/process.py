"""Which process a run belongs to, and whether that process is still there."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

HOST, PID, STARTED = "ortpipe.host", "ortpipe.pid", "ortpipe.started"


def this_process() -> dict[str, str]:
    """Return the tags that name this process: its host, its number there, and when it was started.

    >>> gone(this_process())
    False
    """
    return {HOST: _host(), PID: str(os.getpid()), STARTED: _started(os.getpid()) or ""}


def gone(tags: Mapping[str, str]) -> bool:
    """Return whether a run's process has ended; False where that cannot be known, as of another host.

    A number is used again after a while, so a process that has it but was started at another time is another one.
    """
    if tags.get(HOST) != _host() or not tags.get(STARTED):
        return False
    return _started(int(tags[PID])) != tags[STARTED]


def _host() -> str:
    """Return the machine's name, and the process namespace's number in a container that shares its host's name."""
    namespace = Path("/proc/self/ns/pid")
    inode = namespace.stat().st_ino if namespace.exists() else FIRST_NAMESPACE
    name = socket.gethostname()
    return name if inode == FIRST_NAMESPACE else f"{name}/{inode}"


FIRST_NAMESPACE = 0xEFFFFFFC  # the kernel's own number for the one that is not in a container


def _started(pid: int) -> str | None:
    """Return a process's start in clock ticks since boot, or None if there is none that still works (Linux only)."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *numbers = said.rpartition(")")[2].split()  # the name before it may hold anything
    return None if state in "ZX" else numbers[18]
