"""The command line, run as a user runs it."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import json
import os
import pty
import re
import shlex
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Run = Callable[..., subprocess.CompletedProcess[str]]
OWNS_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER
INTERPRETER = ("PYTHON", "LD_", "LC_", "LANG", "OMP_", "MALLOC_")  # variables that are read when a process begins
OPERATORS = "();<>|&$`{}*?~"  # of a shell
_started: list[subprocess.Popen[Any]] = []
FIRST = ("sitecustomize.py", "usercustomize.py")  # what an interpreter reads before all else


def ortpipe(*arguments: str, cwd: Path, process: bool = False, **options: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m ortpipe` in a folder and return its output.

    It is a fork of a process that has the imports behind it, or a fresh one: with `process`, or where the options are
    variables that an interpreter reads when it begins.
    """
    return _ended(start(*arguments, cwd=cwd, process=process, stderr=subprocess.PIPE, **options))


def start(
    *arguments: str, cwd: Path, process: bool = False, stderr: int = subprocess.STDOUT, **options: str
) -> subprocess.Popen[str]:
    """Start `python -m ortpipe` in a folder; its output is read from `stdout`."""
    inherited = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}  # a test may have set it
    environment = {**inherited, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true", **options}
    command = [sys.executable, "-m", "ortpipe", *arguments]
    made = Process if process else Popen
    return made(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)


def wait_for(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until something holds; fail if it takes longer."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def on_terminal(*arguments: str, cwd: Path, columns: int) -> tuple[int, str]:
    """Run `python -m ortpipe` with standard error on a terminal; return the exit code, and all that this was given."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = Popen(
        [sys.executable, "-m", "ortpipe", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "MLFLOW_DISABLE_TELEMETRY": "true"},
        stdout=subprocess.DEVNULL,
        stderr=follower,
    )
    os.close(follower)
    seen = b""
    with contextlib.suppress(OSError):  # what a terminal says once its program is gone
        while chunk := os.read(leader, 4096):
            seen += chunk
    os.close(leader)
    return process.wait(), seen.decode()


def shell(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of a README, with the interpreter of the tests; bash reads what is more than words."""
    inherited = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**inherited, "PATH": path, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
    program, *words = split(line)
    begins = {"ortpipe": ["-m", "ortpipe"], "python": []}.get(program)
    if begins is None or any(set(word) <= set(OPERATORS) for word in words):
        command = ["bash", "-c", re.sub(r"(^|&& )ortpipe\b", rf"\1{sys.executable} -m ortpipe", line)]
    else:
        command = [sys.executable, *begins, *words]
    return run(command, cwd=cwd, env=environment, text=True)


def split(line: str) -> list[str]:
    """Return the words of a line as a shell reads them; its operators are words of their own."""
    words = shlex.shlex(line, posix=True, punctuation_chars=OPERATORS)
    words.whitespace_split = True
    return list(words)


def run(command: Sequence[Any], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a command as `subprocess.run` does; what it prints is captured where `options` say nothing else."""
    return _ended(Popen(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}))


def _ended(process: subprocess.Popen[Any]) -> subprocess.CompletedProcess[Any]:
    with process:
        try:
            output, errors = process.communicate(timeout=300)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@contextlib.contextmanager
def ended_at_last() -> Iterator[None]:
    """Kill and close the processes that the block starts when it ends."""
    others = list(_started)
    try:
        yield
    finally:
        for process in [process for process in _started if process not in others]:
            with process:
                process.kill()
            _started.remove(process)


class Process(subprocess.Popen):  # type: ignore[type-arg]
    """A `subprocess.Popen` that `ended_at_last` can end."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _started.append(self)


class Popen(Process):
    """A process as of `subprocess`; of `python -m …` or `python -c …` a fork of the warm process, where that may be."""

    def _execute_child(self, args: Sequence[Any], *others: Any) -> None:
        _, preexec, _, handles, cwd, env, _, _, shell, *pipes = others
        command, environment = list(map(str, args)), dict(os.environ if env is None else env)
        if shell or preexec or handles or not warms(command, environment):
            super()._execute_child(args, *others)  # type: ignore[misc]
            return
        streams = [pipe if pipe >= 0 else number for number, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        request = {
            "command": command[1:],
            "environment": environment,
            "folder": str(cwd or os.getcwd()),
            "paths": paths(environment),
            "new_session": pipes[-2],
        }
        self.pid = _warm.fork(request, streams)
        self._child_created = True
        self._close_pipe_fds(*pipes[:6])  # type: ignore[attr-defined]


def warms(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a fork of the warm process runs a command as a fresh process would."""
    if not sys.platform.startswith("linux") or command[0] != sys.executable or command[1] not in ("-m", "-c"):
        return False
    if any(Path(folder, name).exists() for folder in paths(environment) for name in FIRST):
        return False
    names = {name for name in {*environment, *os.environ} if name.startswith(INTERPRETER)} - {"PYTHONPATH"}
    return all(environment.get(name) == os.environ.get(name) for name in names)


def paths(environment: Mapping[str, str]) -> list[str]:
    """Return the folders of PYTHONPATH."""
    return [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]


class _Warm:
    """The warm process of this one: started when a test first needs it, ended with this process."""

    def __init__(self) -> None:
        self._lock, self._requests = threading.Lock(), None

    def fork(self, request: Mapping[str, Any], streams: Sequence[int]) -> int:
        """Return the id of a process that is this one's child."""
        with self._lock:
            requests, library = self._connected(), ctypes.CDLL(None)
            library.prctl(OWNS_ORPHANS, 1, 0, 0, 0)
            try:
                socket.send_fds(requests, [json.dumps(request).encode()], streams)
                return int(requests.recv(100))
            finally:
                library.prctl(OWNS_ORPHANS, 0, 0, 0, 0)

    def _connected(self) -> socket.socket:
        if self._requests is None:
            self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            process = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("warm.py"), str(theirs.fileno())],
                cwd=ROOT,
                env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            theirs.close()
            atexit.register(self._end, process)
        return self._requests

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self._requests.close()
        process.wait()


_warm = _Warm()
