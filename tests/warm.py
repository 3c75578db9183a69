"""A process that has imported what the command line needs, and forks one process for each command a test starts.

What a command imports that is not here yet, this process imports before the next fork. A fork has a folder, an
environment, streams, signals and an end of its own, as a fresh interpreter has: only the seconds of imports are saved,
and those of what each process finds out anew that no command changes.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import figures_once
import fits_once
import mode_once
import no_fsync
import schema_once

LARGEST = 200_000  # bytes of a message
NEVER = ("ray",)  # what an import starts threads of
USUAL = (  # what nearly every command imports, or what takes seconds: once here, and not in the first forks as well
    *("ortpipe.app.cli", "ortpipe.app.execute", "ortpipe.app.sweep.sweep", "ortpipe.app.tracking.recorders.mlflow"),
    *("ortpipe.app.tracking.mlflow_run", "ortpipe.data.sources.bundled", "ortpipe.stages.derive.engines.native"),
    *("ortpipe.stages.convert.sources.sklearn_estimator", "sklearn.datasets", "sklearn.neural_network"),
    *("sklearn.preprocessing", "sklearn.utils._pprint", "pyarrow.parquet", "matplotlib.backends.backend_agg"),
    *("matplotlib.figure", "humanize", "mlflow.onnx", "mlflow.pyfunc", "mlflow.store.tracking.sqlalchemy_store"),
    *("mlflow.store.model_registry.sqlalchemy_store", "sqlalchemy.dialects.sqlite"),
)
KEPT = (os.path.dirname(os.__file__), sys.prefix, str(Path(__file__).resolve().parents[1] / "ortpipe"))


def main() -> None:
    """Serve the requests of a socket, whose number is the first argument, until it is closed."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    learned, teaching = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    import_all(USUAL)
    while True:
        message, handles, _, _ = socket.recv_fds(requests, LARGEST, 3)
        if not message:
            return
        import_again(learned)
        answer = fork(requests, learned)
        if answer is None:
            begin(json.loads(message), handles, teaching)
        for handle in handles:
            os.close(handle)
        requests.send(str(answer).encode())


def fork(*others: socket.socket) -> int | None:
    """Return the id of a new process whose parent has ended, so that its parent is the process that asked for it."""
    reading, writing = os.pipe()
    waiting, going = os.pipe()
    between = os.fork()
    if between:
        os.close(writing)
        os.close(waiting)
        with open(reading, "rb") as answer:
            process = int(answer.read())
        os.waitpid(between, 0)
        os.close(going)  # the new process may begin
        return process
    process = os.fork()
    if process:
        os.write(writing, str(process).encode())
        os._exit(0)
    for handle in (reading, writing, going):
        os.close(handle)
    for other in others:
        other.close()
    os.read(waiting, 1)
    os.close(waiting)
    return None


def begin(request: dict[str, Any], handles: list[int], teaching: socket.socket) -> None:
    """Be the process that was asked for, to its end."""
    for number, handle in enumerate(handles):
        os.dup2(handle, number)
        os.close(handle)
    if request["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    before, code = set(sys.modules), 0
    try:
        os.chdir(request["folder"])
        schema_once.patch()
        figures_once.patch()
        fits_once.patch()
        mode_once.patch()
        no_fsync.patch()
        way, what, *arguments = request["command"]
        sys.argv[1:] = arguments
        sys.path[1:1] = request["paths"]
        if way == "-m":
            sys.path[0] = os.getcwd()
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            sys.path[0], sys.argv[0] = "", "-c"
            own = type(sys)("__main__")
            sys.modules["__main__"] = own
            exec(compile(what, "<string>", "exec"), own.__dict__)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except KeyboardInterrupt:
        traceback.print_exc()
        code = 128 + signal.SIGINT
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError):
        teaching.send(json.dumps([name for name in sys.modules if name not in before]).encode(), socket.MSG_DONTWAIT)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120  # as the interpreter does
    os._exit(code)


def import_again(learned: socket.socket) -> None:
    """Import what the forks before had to import, but for what is the tests' own."""
    news = []
    with contextlib.suppress(BlockingIOError):
        while True:
            news.append(learned.recv(LARGEST, socket.MSG_DONTWAIT))
    if news:
        import_all(name for message in news for name in json.loads(message))


def import_all(names: Iterable[str]) -> None:
    """Import what is installed or ours, find out anew what each process does, and leave all of it out of searches."""
    for name in names:
        with contextlib.suppress(Exception):
            if name.partition(".")[0] not in NEVER and name not in sys.modules:
                origin = getattr(importlib.util.find_spec(name), "origin", None) or ""
                if origin.startswith(KEPT):
                    importlib.import_module(name)
    for name in [name for name in REHEARSED if name in sys.modules]:
        REHEARSED.pop(name)()
    gc.collect()
    gc.freeze()


def rehearse_requirements() -> None:
    """Find which package holds which module, which MLflow does with the first model that a process logs."""
    from mlflow.utils import requirements_utils

    requirements_utils._init_packages_to_modules_map()


def rehearse_drawing() -> None:
    """Draw, for the fonts and the grammar of labels."""
    from ortpipe.picture import picture

    picture(lambda axes: (axes.semilogy([1, 1000], label="a"), axes.set_title("a"), axes.legend()))


def rehearse_composition() -> None:
    """Find Hydra's plugins and compose, for the grammar of overrides and the kinds of classes."""
    from hydra import compose, initialize_config_dir

    from ortpipe.app.compose import packaged_conf

    with initialize_config_dir(str(packaged_conf()), version_base="1.3"):
        compose("config", ["train.epochs=1", "data.split.test=0.5", "name='a b'", "+a=[b]"], return_hydra_config=True)


def rehearse_reports() -> None:
    """Compile the templates."""
    from ortpipe.app.run.report import templates

    templates()


REHEARSED = {
    "mlflow.utils.requirements_utils": rehearse_requirements,
    "matplotlib.figure": rehearse_drawing,
    "ortpipe.app.run.report": rehearse_reports,
    "ortpipe.app.compose": rehearse_composition,
}


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # the tests' own folder is no fork's
    main()
