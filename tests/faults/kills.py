"""Kill runs with SIGKILL: in each stage at a random moment, and while its result is published; look at what is left.

PYTHONPATH=.:tests python -m faults.kills 100 [recorder]
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from command import ROOT, Popen, ortpipe

from ortpipe.artifact_folder import load_artifact
from ortpipe.flow import FLOW
from ortpipe.pipeline.store import Store

WHERE = ("in", "artifacts", "entries")
STAGES = [stage.name for stage in FLOW]
RUN = ("experiment=linear_regression", "train.epochs=400", "name=killed")
ATTEMPTS = 3  # to meet a run before it ends
SAME = ("model.onnx", "losses.parquet", "stages/*/model.onnx", "stages/*/tensors.safetensors")


@dataclass(frozen=True)
class Kill:
    """What a kill met and left.

    Attributes:
        aim: the stage, and whether `in` it or while its `artifacts` or `entries` are written.
        met: False where the run had ended before.
        stored: the stages whose results were in the store after it.
        half: which of `artifacts` and `entries` have something half-written, under a temporary name.
        locks: lock files that were left behind.
    """

    aim: tuple[str, str]
    met: bool
    stored: frozenset[str]
    half: tuple[str, ...]
    locks: int


def arguments(outputs: Path, recorder: str) -> list[str]:
    """Return the overrides of one run; all runs of a test record in one database."""
    said = [*RUN, f"recorder={recorder}", f"paths.outputs={outputs}"]
    return [*said, f"recorder.tracking_uri=sqlite:///{outputs.parent}/mlflow.db"] if recorder == "mlflow" else said


def run_folder(outputs: Path) -> Path:
    """Return the folder of the last run that finished."""
    return sorted(path.parent for path in outputs.glob("runs/*/*/report.html"))[-1]


def content(folder: Path) -> dict[str, str]:
    """Return the digest of every file that does not tell time."""
    files = [path for pattern in SAME for path in folder.glob(pattern)]
    metrics = json.dumps(json.loads((folder / "run.json").read_text())["metrics"])
    return {
        "metrics": metrics,
        **{str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
    }


def kill(outputs: Path, recorder: str, aim: tuple[str, str], moments: random.Random) -> Kill:
    """Start a run, kill it, and return what is left; everything that is stored must be whole."""
    name, where = aim
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
    command = [sys.executable, "-m", "ortpipe", *arguments(outputs, recorder)]
    with Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(b"[") and line.split()[1].decode() == name:
                break
        if where == "in":
            time.sleep(moments.uniform(0, 0.15 if name in ("convert", "evaluate") else 0.06))
        else:
            while process.poll() is None and not half_written(outputs / "cache", where):
                pass
            time.sleep(moments.choice([0, moments.uniform(0, 0.004)]))
        process.kill()
        process.stderr.read()
    store = Store(outputs / "cache")
    entries = list((store.folder / "entries").glob("*/*.json"))
    found = list(store.entries())
    assert len(found) == len(entries), "an entry cannot be read"
    for entry in found:
        assert load_artifact(store.artifact_folder(entry.output)).digest() == entry.output
    met = process.returncode == -signal.SIGKILL
    locks = len(list((store.folder / "locks").glob("*")))
    half = tuple(where for where in WHERE[1:] if half_written(store.folder, where))
    return Kill(aim, met, frozenset(entry.stage for entry in found), half, locks)


def half_written(cache: Path, part: str) -> bool:
    """Return whether something of a part of the store has a temporary name."""
    try:
        return any(name[0] == "." for place in os.listdir(cache / part) for name in os.listdir(cache / part / place))
    except FileNotFoundError:
        return False


def complete(outputs: Path, recorder: str, left: Kill, expected: dict[str, str]) -> None:
    """Run again to the end: what was stored is taken, nothing is found damaged, and every byte is as expected."""
    done = ortpipe(*arguments(outputs, recorder), cwd=outputs)
    assert done.returncode == 0, done.stderr
    assert "set aside" not in done.stderr
    folder = run_folder(outputs)
    stages = json.loads((folder / "run.json").read_text())["stages"]
    assert {stage["name"] for stage in stages if stage["origin"]} == left.stored
    assert content(folder) == expected


def statuses(folder: Path) -> collections.Counter[str]:
    """Return how many runs of the database have which status."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    found = client.search_runs([e.experiment_id for e in client.search_experiments()], max_results=5000)
    return collections.Counter(run.info.status for run in found)


def kills(folder: Path, aims: Sequence[tuple[str, str]], recorder: str = "none") -> list[Kill]:
    """Kill a run for every aim, each with a store of its own, and complete each."""
    moments, found = random.Random(0), []
    (folder / "unkilled").mkdir()
    done = ortpipe(*arguments(folder / "unkilled", recorder), cwd=folder)
    assert done.returncode == 0, done.stderr
    expected = content(run_folder(folder / "unkilled"))
    assert len(expected) == 3 + 2 * len(STAGES)
    for number, aim in enumerate(aims):
        for attempt in range(ATTEMPTS):
            outputs = folder / f"{number}_{attempt}"
            outputs.mkdir()
            left = kill(outputs, recorder, aim, moments)
            complete(outputs, recorder, left, expected)
            if left.met:
                break
        found.append(left)
    return found


def main() -> None:
    """Print what was killed where, and what was left."""
    count, recorder = int(sys.argv[1]), (sys.argv[2:] or ["none"])[0]
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        every = itertools.cycle(itertools.product(STAGES, WHERE))
        found = kills(Path(folder), list(itertools.islice(every, count)), recorder)
        print(f"{sum(k.met for k in found)} of {count} runs were killed, {time.perf_counter() - begun:.0f} s")
        if recorder == "mlflow":
            print("recorded:", dict(statuses(Path(folder))))
    for where in WHERE:
        met = collections.Counter(k.aim[0] for k in found if k.met and k.aim[1] == where)
        print(f"killed {where}:", dict(met), "half-written:", sum(where in k.half for k in found))
    print("with a lock file left behind:", sum(k.locks > 0 for k in found))
    print("stages stored when killed:", dict(sorted(collections.Counter(len(k.stored) for k in found).items())))
    print("damaged entries served: 0; completed with the bytes of a run that was not killed:", len(found))


if __name__ == "__main__":
    main()
