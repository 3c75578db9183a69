"""Fail every file operation of a run in turn: with an error, or with a kill; look at what is left, and run again.

PYTHONPATH=.:tests python -m faults.operations [scenario ...] [--sample N] [--faults kill,EIO] [--workers N]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import ctypes
import errno
import hashlib
import io
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import figures_once
from command import ROOT

FAIL, KILL_BEFORE, KILL_AFTER = 1, 2, 3
KINDS = {"kill": KILL_BEFORE, "kill after": KILL_AFTER}
READS = {"open", "read", "pread", "pread64", "fopen", "fopen64", "opendir", "fdopendir"}
OPENS = {"open", "create", "fopen", "fopen64", "opendir"}
CLEANS = {"unlink", "unlinkat", "rmdir", "opendir", "fdopendir", "open"}  # where these fail, what they clean up stays
FAULTS = ("kill", "kill after", "EIO", "ENOSPC", "EMFILE", "EIO from then on", "EMFILE from then on")
JOB = (
    *("experiment=linear_regression", "train.checkpoint.epochs=1", "recorder=none", "paths.outputs=outputs"),
    *("hydra.run.dir=run", "name=faulty", "runtime.threads=1"),
)
SHORT, LONG = (*JOB, "train.epochs=2"), (*JOB, "train.epochs=4")
STREAMED = ("data=parquet", "data.source.path=rows.parquet", "data.source.label=y", "data.source.stream=true")
SCENARIOS = {  # what lies there before, what meets the fault, and what must go right after it
    "cold": ((), SHORT, SHORT),
    "warm": ((SHORT,), SHORT, SHORT),
    "resume": ((SHORT,), (*LONG, "resume=run"), (*LONG, "resume=run")),
    "verify": ((SHORT,), ("cache", "verify", "paths.outputs=outputs"), SHORT),
    "gc": ((SHORT,), ("cache", "gc", "--keep", "30kB", "paths.outputs=outputs"), SHORT),
    "mlflow": ((), (*SHORT[:2], "recorder=mlflow", *SHORT[3:]), SHORT),  # on demand
    "parquet": ((), (*SHORT, *STREAMED), ()),  # on demand
}
QUICK = ("cold", "warm", "resume", "verify", "gc")
SAME = ("model.onnx", "losses.parquet", "stages/*/model.onnx", "stages/*/tensors.safetensors")


@dataclass(frozen=True)
class Case:
    """One fault at one operation of a scenario, counted from 0; `name` and `path` say which it is."""

    scenario: str
    at: int
    name: str
    path: str
    fault: str


def library(folder: Path) -> Path:
    """Compile the library that counts and fails."""
    made = folder / "operations.so"
    source = Path(__file__).with_name("operations.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return made


def warm_up(scenarios: Sequence[str]) -> None:
    """Run once in this process, so that each fork of it finds everything imported, and every config composed."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    compose, known = ConfigLoaderImpl.load_configuration, {}

    def composed(self: ConfigLoaderImpl, *arguments: object, **named: object) -> object:
        key = repr((arguments, named))
        if key not in known:
            known[key] = compose(self, *arguments, **named)
        return copy.deepcopy(known[key])

    ConfigLoaderImpl.load_configuration = composed
    for scenario in scenarios:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            before, faulty, then = SCENARIOS[scenario]
            write_rows(Path(folder))
            for arguments in (*before, faulty, *([then] if then else [])):
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
                    assert command_line(arguments) == 0, said.getvalue()
    figures_once.patch()  # drawn in memory: no file operation of a run is left out


def write_rows(folder: Path) -> None:
    """Write the rows of the scenario that streams."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet

    values = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    columns = {f"x{i}": values[:, i] for i in range(3)} | {"y": values.sum(axis=1)}
    pyarrow.parquet.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=50)


def perform(
    folder: Path, arguments: Sequence[str], case: Case | None = None, log: Path | None = None
) -> tuple[int, str]:
    """Run the command line in a fork of this process; return its exit code (-9 where it was killed) and its output."""
    said = folder.with_suffix(".said")
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.chdir(folder)
            output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            watch(folder, case, log)
            code = command_line(arguments)
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said.read_text(errors="replace")


def command_line(arguments: Sequence[str]) -> int:
    import traceback

    from ortpipe.app.cli import main

    sys.argv = ["ortpipe", *arguments]
    os.environ.pop("HYDRA_FULL_ERROR", None)  # which main sets, and the run before this one left
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001 - a fork of the server must not go on as one
        traceback.print_exc()
        return 1
    return 0


def watch(folder: Path, case: Case | None, log: Path | None) -> None:
    """Let the library count what happens under a folder from now on, and fail what the case says."""
    counting = ctypes.CDLL(None).watch
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if log is not None else -1
    fault = case.fault.partition(" from")[0] if case is not None else ""
    kind = KINDS.get(fault, FAIL)
    number = getattr(errno, fault) if fault and kind == FAIL else 0
    sticky = case is not None and case.fault.endswith("from then on")
    counting.argtypes = [ctypes.c_char_p, ctypes.c_long, *[ctypes.c_int] * 4]
    counting(bytes(folder), -1 if case is None else case.at, kind, number, sticky, handle)


def operations(scenario: str, base: Path, folder: Path) -> list[tuple[str, str]]:
    """Return the name and the path of every file operation that a scenario does."""
    place, log = folder / "counted", folder / "counted.log"
    shutil.copytree(base, place)
    code, said = perform(place, SCENARIOS[scenario][1], log=log)
    assert code == 0, said
    shutil.rmtree(place)
    return [(name, path) for name, _, path in (line.partition("\t") for line in log.read_text().splitlines())]


def cases(scenario: str, found: Sequence[tuple[str, str]], faults: Iterable[str]) -> list[Case]:
    """Return every fault that an operation can meet."""
    possible = [
        Case(scenario, at, name, path, fault)
        for at, (name, path) in enumerate(found)
        for fault in faults
        if ".hydra" not in path and not path.endswith(".log")  # Hydra's own
    ]
    return [case for case in possible if can_meet(case)]


def can_meet(case: Case) -> bool:
    if (
        case.fault.startswith("ENOSPC") or case.fault == "kill after"
    ):  # what only reads needs no room, and leaves nothing
        return case.name not in READS
    return case.name in OPENS if case.fault.startswith("EMFILE") else True


def content(folder: Path) -> dict[str, str]:
    """Return the digest of each of a run's files that tells no time."""
    files = [path for pattern in SAME for path in folder.glob(pattern)]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def hidden(folder: Path) -> list[str]:
    """Return what has a temporary name."""
    from ortpipe.files import TEMPORARY

    return [str(path.relative_to(folder)) for path in folder.rglob(".*") if TEMPORARY.fullmatch(path.name)]


def wrong(case: Case, base: Path, folder: Path, code: int, said: str, expected: dict[str, str]) -> Iterator[str]:
    """Yield what a fault left that it must not."""
    killed, run = case.fault.startswith("kill"), folder / "run"
    if killed and code not in (-signal.SIGKILL, 0):
        yield f"exit code {code} of a run that was killed: {said}"
    if not killed and code not in (0, 1):
        yield f"exit code {code}: {said}"
    if "Traceback" in said:
        yield f"traceback: {said}"
    if code == 1 and "error: " not in said and case.scenario != "verify":
        yield f"no error is said: {said}"
    if "set aside" in said or (folder / "outputs" / "cache" / "damaged").exists():
        yield f"set aside: {said}"
    yield from halves(folder)
    state = run / "run.json"
    status = json.loads(state.read_text())["status"] if state.exists() else None
    untouched = status is not None and read(state) == read(base / "run" / "run.json")
    ran = "cache" not in SCENARIOS[case.scenario][1]
    if ran and not killed and not (code and untouched) and (code == 0) != (status == "FINISHED"):
        yield f"exit code {code}, and run.json says {status}: {said}"
    if ran and status == "FINISHED" and content(run) != (content(base / "run") if untouched else expected):
        yield f"FINISHED, with other files: {said}"
    if not killed and not case.fault.endswith("on") and case.name not in CLEANS and hidden(folder):
        yield f"left: {hidden(folder)}: {said}"


def read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def read_some(path: Path) -> None:
    if not path.read_bytes() and path.suffix != ".log":
        raise ValueError("it is empty")


def halves(folder: Path) -> Iterator[str]:
    """Yield the files that are not whole, and the entries that are not as they were written."""
    import onnx
    import pyarrow.parquet
    import safetensors.numpy

    from ortpipe.pipeline.gc import verify
    from ortpipe.pipeline.store import Store

    readers = {
        ".json": lambda path: json.loads(path.read_bytes()),
        ".onnx": lambda path: onnx.checker.check_model(onnx.load(path)),
        ".safetensors": lambda path: safetensors.numpy.load(path.read_bytes()),
        ".parquet": pyarrow.parquet.read_table,
    }
    for path in sorted(folder.rglob("*")):
        if path.parent.name == "locks":  # what one says is for people: it is a lock before it says anything
            continue
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            try:
                readers.get(path.suffix, read_some)(path)
            except Exception as error:  # noqa: BLE001 - whatever its reader says of half a file
                yield f"half a file: {path.relative_to(folder)}: {error}"
    store, told = Store(folder / "outputs" / "cache"), []
    files = store.files()
    found = verify(store, told.append)
    if found != Counter(intact=len(files)):
        yield f"the store: {found} of {len(files)}: {told}"


def tried(case: Case, base: Path, folder: Path, expected: dict[str, str]) -> list[str]:
    """Return what went wrong in a case."""
    from ortpipe.pipeline.gc import remove
    from ortpipe.pipeline.store import Store

    shutil.copytree(base, folder)
    _, faulty, then = SCENARIOS[case.scenario]
    try:
        code, said = perform(folder, faulty, case)
        found = list(wrong(case, base, folder, code, said, expected))
        again = then or faulty
        if "resume=run" in again and not (folder / "run" / "checkpoint.safetensors").exists():
            found.append("no checkpoint is left")
        code, said = perform(folder, again)
        if code or "set aside" in said or "cannot be read now" in said:
            found.append(f"the next run: exit code {code}: {said}")
        elif content(folder / "run") != expected:
            found.append("the next run gives other files")
        found += [f"after the next run: {problem}" for problem in halves(folder)]
        remove(Store(folder / "outputs" / "cache"), [])
        if hidden(folder):
            found.append(f"left after the next run and garbage collection: {hidden(folder)}")
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".said").unlink(missing_ok=True)


def prepared(scenario: str, folder: Path) -> tuple[Path, dict[str, str], list[tuple[str, str]]]:
    """Return a folder as it lies before the fault, what the run after it must give, and the operations."""
    before, faulty, then = SCENARIOS[scenario]
    base = folder / "base"
    base.mkdir(parents=True)
    write_rows(base)
    for arguments in before:
        code, said = perform(base, arguments)
        assert code == 0, said
    counted, complete = operations(scenario, base, folder), folder / "complete"
    shutil.copytree(base, complete)
    for arguments in (faulty, then or faulty):
        code, said = perform(complete, arguments)
        assert code == 0, said
    return base, content(complete / "run"), counted


def _try(job: tuple[Case, Path, Path, dict[str, str]]) -> tuple[Case, list[str]]:
    return job[0], tried(*job)


def precedence(drawn: Sequence[Case]) -> list[int]:
    """Return the cases in the order in which a sample takes them.

    First a kill where each kind of file is written, by its path; then one of each fault at each operation, and so on.
    """
    seen: collections.Counter[tuple[str, ...]] = collections.Counter()
    rank = {}
    for number, case in enumerate(drawn):
        written = (case.scenario, file_kind(case.path))
        of_file = (case.name, case.fault) == ("write", "kill") and "lock" not in case.path
        if of_file and not seen[written]:
            rank[number], seen[written] = -1, 1
            continue
        kind = (case.scenario, case.fault, case.name)
        rank[number], seen[kind] = seen[kind], seen[kind] + 1
    return sorted(rank, key=lambda number: (rank[number], number))


def file_kind(path: str) -> str:
    """Return a file's path with * for what differs from run to run and from stage to stage.

    >>> file_kind("/run/stages/1_convert/.model.svg.0123456789abcdef")
    '/run/stages/*/model.svg'
    """
    below = re.sub(r"\.([^/]+)\.[0-9a-f]{16}(?=/|$)", r"\1", path)
    return re.sub(
        r"[^/]*[0-9a-f]{64}|(?<=stages/)[^/]+|(?<=entries/)[^/]+|(?<=artifacts/)[^/]+|(?<=figures/)[^/]+", "*", below
    )


def pass_through(
    folder: Path, scenarios: Sequence[str], faults: Sequence[str], sample: int | None, workers: int = 1
) -> Iterator[tuple[Case, list[str]]]:
    """Try every case, or a sample of this size of all, and yield what went wrong in each."""
    jobs = []
    for scenario in scenarios:
        base, expected, found = prepared(scenario, folder / scenario)
        print(f"{scenario}: {len(found)} file operations", flush=True)
        jobs += [
            (case, base, folder / scenario / f"case {number}", expected)
            for number, case in enumerate(cases(scenario, found, faults))
        ]
    random.Random(0).shuffle(jobs)
    if sample is not None:
        order = precedence([case for case, *_ in jobs])
        jobs = [jobs[number] for number in order[:sample]]
    default = (signal.SIGTERM, signal.SIG_DFL)  # a run of this process has asked for its own
    with multiprocessing.get_context("fork").Pool(workers, signal.signal, default) as pool:
        yield from pool.imap_unordered(_try, jobs)


def main() -> int:
    """Print what was tried, and what went wrong; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", default=QUICK, help=", ".join(SCENARIOS))
    parser.add_argument("--sample", type=int)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    begun, seconds = time.perf_counter(), 0.0
    tried_of: collections.Counter[tuple[str, str]] = collections.Counter()
    bad = 0
    with tempfile.TemporaryDirectory() as temporary:
        if "OPERATIONS" not in os.environ:  # begin again with the library in front
            variables = {
                "LD_PRELOAD": str(library(Path(temporary))),
                "OPERATIONS": "1",
                "PYTHONPATH": f"{ROOT}:{ROOT}/tests",
            }
            return subprocess.run(
                [sys.executable, "-m", "faults.operations", *sys.argv[1:]], env={**os.environ, **variables}
            ).returncode
        warm_up(given.scenarios)
        for case, problems in pass_through(
            Path(temporary), given.scenarios, given.faults.split(","), given.sample, given.workers
        ):
            tried_of[case.scenario, case.fault] += 1
            bad += bool(problems)
            for problem in problems:
                print(
                    f"{case.scenario} {case.fault} at {case.at} {case.name} {case.path}: {problem[-2000:]}", flush=True
                )
    seconds = time.perf_counter() - begun
    print(f"{'scenario':<10}{'fault':<22}{'cases':>6}")
    for (scenario, fault), count in sorted(tried_of.items()):
        print(f"{scenario:<10}{fault:<22}{count:>6}")
    print(f"{sum(tried_of.values())} cases in {seconds:.0f} s, {bad} with something wrong")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
