"""The process of a run, and whether it has ended; if that is uncertain, it counts as running."""

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
FIRST_NAMESPACE = 0xEFFFFFFC  # the kernel's number for the process namespace outside of containers


def this_process() -> dict[str, str]:
    """Return the tags that identify this process: host, machine, boot, process id and start time.

    >>> gone(this_process())
    False
    """
    machine, boot = _machine_and_boot()
    started = (_start_time(os.getpid()) if boot else None) or ""
    return {HOST: socket.gethostname(), MACHINE: machine, BOOT: boot, PID: str(os.getpid()), STARTED: started}


def gone(tags: Mapping[str, str]) -> bool:
    """Return whether a run's process has certainly ended; False if that is unknown, as on another machine.

    A process of an earlier boot of this machine has ended. So has one if no process has its id, or one with another
    start time: ids are reused. A process that this user may not inspect counts as running.
    """
    machine, boot = _machine_and_boot()
    if not boot or not tags.get(BOOT) or not tags.get(STARTED) or not tags.get(PID, "").isdecimal():
        return False
    if tags[BOOT] != boot:
        return machine != "" and tags.get(MACHINE) == machine
    return _start_time(int(tags[PID])) not in (tags[STARTED], UNKNOWN)


def _start_time(pid: int) -> str | None:
    """Return the start time of a process, UNKNOWN if it is hidden, or None if the process has ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        # On Linux counted from the boot, which setting the clock does not change; elsewhere from 1970
        return f"{process.create_time() - (psutil.boot_time() if psutil.LINUX else 0):.2f}"
    except psutil.ZombieProcess:
        return None
    except psutil.NoSuchProcess:
        return UNKNOWN if _is_hidden(pid) else None
    except (psutil.Error, OSError):
        return UNKNOWN


def _is_hidden(pid: int) -> bool:
    """Return whether an unlisted process exists (/proc may be mounted with hidepid, or not at all)."""
    if os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


@functools.cache
def _machine_and_boot() -> tuple[str, str]:
    """Return the id of this machine, and of its boot (on Linux also of the container), which process ids belong to.

    An id that cannot be read is empty. In a container the machine's id is empty: copies of an image share its file.
    """
    machine = _hash(_machine_id(), socket.gethostname())
    if sys.platform != "linux":
        return machine, machine  # start times count from 1970 there, so ids need no boot
    boot = _read("/proc/sys/kernel/random/boot_id")
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return machine, ""
    return machine if namespace == FIRST_NAMESPACE else "", _hash(boot, str(namespace))


def _machine_id() -> str:
    """Return the id of the system's installation, else of its network card, else an empty string."""
    if sys.platform == "win32":
        import winreg

        with contextlib.suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, WINDOWS_IDS) as key:
            return str(winreg.QueryValueEx(key, "MachineGuid")[0])
    if machine := _read("/etc/machine-id") or _read("/var/lib/dbus/machine-id"):
        return machine
    node = uuid.getnode()
    return "" if node >> 40 & 1 else f"{node:x}"  # the bit marks a random number, which identifies no machine


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _hash(identity: str, part: str) -> str:
    """Return a hash of an id, for systemd asks not to publish the id itself; empty for an empty one."""
    return hashlib.sha256(f"ortpipe {identity} {part}".encode()).hexdigest()[:16] if identity else ""
