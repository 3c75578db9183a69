"""Which process a run belongs to, and whether that process is still there; what is not certain counts as there."""

import contextlib
import functools
import hashlib
import os
import socket
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

HOST, MACHINE, BOOT = "ortpipe.host", "ortpipe.machine", "ortpipe.boot"
PID, STARTED = "ortpipe.pid", "ortpipe.started"
UNKNOWN = "unknown"
WINDOWS_IDS = r"SOFTWARE\Microsoft\Cryptography"
FIRST_NAMESPACE = 0xEFFFFFFC  # the kernel's own number for the process namespace that is not a container's


def this_process() -> dict[str, str]:
    """Return the tags that name this process: its machine, that one's boot, its number there, and when it was started.

    >>> gone(this_process())
    False
    """
    machine, boot = _place()
    started = (_started(os.getpid()) if boot else None) or ""
    return {HOST: socket.gethostname(), MACHINE: machine, BOOT: boot, PID: str(os.getpid()), STARTED: started}


def gone(tags: Mapping[str, str]) -> bool:
    """Return whether a run's process has certainly ended; False where that cannot be known, as of another machine.

    A process of an earlier boot of this machine has. So has one whose number no process has, or one that was started at
    another time: numbers are used again. A process that this user may not look at counts as there.
    """
    machine, boot = _place()
    if not boot or not tags.get(BOOT) or not tags.get(STARTED) or not tags.get(PID, "").isdecimal():
        return False
    if tags[BOOT] != boot:
        return machine != "" and tags.get(MACHINE) == machine
    return _started(int(tags[PID])) not in (tags[STARTED], UNKNOWN)


def _started(pid: int) -> str | None:
    """Return when a process was started, UNKNOWN if that is hidden, None if there is none that still works."""
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        # On Linux counted from the boot, so that setting the clock changes nothing; elsewhere a date
        return f"{process.create_time() - (psutil.boot_time() if psutil.LINUX else 0):.2f}"
    except psutil.ZombieProcess:
        return None
    except psutil.NoSuchProcess:
        return UNKNOWN if _is_hidden(pid) else None
    except (psutil.Error, OSError):
        return UNKNOWN


def _is_hidden(pid: int) -> bool:
    """Return whether there is such a process although it is not listed (/proc mounted with hidepid, or not at all)."""
    if os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


@functools.cache
def _place() -> tuple[str, str]:
    """Return what names this machine among all, and the boot (on Linux, and the container) that its numbers are of.

    Each is empty where it cannot be read. The machine's is empty in a container too: copies of an image share its file.
    """
    machine = _hashed(_machine_id(), socket.gethostname())
    if sys.platform != "linux":
        return machine, machine  # where starts have dates, numbers need no boot
    boot = _read("/proc/sys/kernel/random/boot_id")
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return machine, ""
    return machine if namespace == FIRST_NAMESPACE else "", _hashed(boot, str(namespace))


def _machine_id() -> str:
    """Return the id that the system was given when it was installed, else its network card's; empty without either."""
    if sys.platform == "win32":
        import winreg

        with contextlib.suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, WINDOWS_IDS) as key:
            return str(winreg.QueryValueEx(key, "MachineGuid")[0])
    if machine := _read("/etc/machine-id") or _read("/var/lib/dbus/machine-id"):
        return machine
    node = uuid.getnode()
    return "" if node >> 40 & 1 else f"{node:x}"  # set in a random number, which names no machine


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _hashed(identity: str, part: str) -> str:
    """Return a hash of an id, which systemd asks not to publish; empty for an empty one."""
    return hashlib.sha256(f"ortpipe {identity} {part}".encode()).hexdigest()[:16] if identity else ""
