"""Servers that tests start and stop: MLflow's, and PostgreSQL behind it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import Popen

NOBODY = 65534


def free_port() -> int:
    """Return a port on which nothing listens, below those that the system gives to outgoing connections."""
    while True:
        port = secrets.choice(range(20_000, 32_000))
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def afterwards(command: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a line of a shell after the block, also where this process is killed in it: its end closes the pipe."""
    waiting = ["sh", "-c", f"read -r _; {command}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, start_new_session=True, **{**quiet, **options}) as process:
        yield process


@contextlib.contextmanager
def mlflow_server(backend: str, folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Give the address and process of an MLflow server that keeps runs in a database, artifacts in a folder."""
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", backend, "--artifacts-destination", str(folder)]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    with open(folder / "server.log", "wb") as log:
        process = Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    with process, afterwards(f"kill -9 -{process.pid}"):  # its worker too
        for _ in range(600):
            assert process.poll() is None, (folder / "server.log").read_text()
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5):
                break
            time.sleep(0.1)
        yield address, process


@contextlib.contextmanager
def postgresql() -> Iterator[str]:
    """Give the URI of an empty PostgreSQL database; skip where it is not installed and cannot be."""
    pytest.importorskip("psycopg", reason="needs psycopg: pip install 'ortpipe[postgresql]'")
    programs = _installed() or _install()
    if programs is None:
        pytest.skip("needs PostgreSQL's initdb and pg_ctl: apt-get install postgresql")
    user = {"user": NOBODY, "group": NOBODY} if os.getuid() == 0 else {}  # PostgreSQL refuses root
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        if user:
            os.chown(folder, NOBODY, NOBODY)

        def call(program: str, *arguments: str) -> None:
            command = [str(programs / program), "-D", f"{folder}/data", *arguments]
            done = subprocess.run(command, cwd=folder, stdout=log, stderr=log, timeout=120, **user)  # type: ignore[call-overload]
            assert done.returncode == 0, Path(log.name).read_text()

        stop = f"{shlex.quote(str(programs / 'pg_ctl'))} -D {folder}/data -w -m immediate stop"
        with tempfile.NamedTemporaryFile("w") as log:
            call("initdb", "-U", "ortpipe", "-A", "trust", "--no-sync", "-E", "UTF8")
            with afterwards(stop, cwd=folder, stdout=log, stderr=log, **user) as stopped:
                call("pg_ctl", "-w", "-o", f"-k {folder} -c listen_addresses='' -c fsync=off", "start")
                yield f"postgresql+psycopg://ortpipe@/postgres?host={folder}"
            assert stopped.returncode == 0, Path(log.name).read_text()


def _installed() -> Path | None:
    found = shutil.which("pg_ctl")
    if found is not None and shutil.which("initdb") is not None:
        return Path(found).resolve().parent
    return max((path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")), default=None)


def _install() -> Path | None:
    """Install PostgreSQL where this is a Debian whose administrator runs the tests, as in a container."""
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        return None
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", "postgresql"]):
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(["apt-get", *command], env=quiet, capture_output=True, timeout=180, check=False)
    return _installed()
