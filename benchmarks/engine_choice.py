"""Whole jobs around the thresholds of `runtime.engine=auto`: seconds in each engine.

    python -m benchmarks.engine_choice [MODEL …] [--optimizer adam] [--rounds 3]

A job is a fresh process of the stages, from its start to the trained weights on disk, on one core: imports, compiling
(in C with an empty cache) and steps count. Each number is processor time, the least of some rounds in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.work import MODELS, OPTIMIZERS, Work, prepare
from ortpipe import LOSSES, AddLossConfig, ConvertConfig, add_loss, convert, derive
from ortpipe.stages.convert.sources.onnx_file import OnnxFile

ENGINES = ("onnxruntime", "c", "xla")
EPOCHS = (4, 16, 64, 256, 1024)
LONGEST = 60  # seconds, after which no more epochs are tried
SCRIPT = Path(__file__).parent / "peers" / "ortpipe_stages.py"


def seconds(folder: Path, engine: str) -> float:
    """Return the time of one job."""
    for name in ("job", "cache"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "job").mkdir()
    word = "" if engine == "onnxruntime" else engine
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    core = {max(os.sched_getaffinity(0))}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, str(SCRIPT), str(folder), "job", "1", word]
    subprocess.run(
        command, env=environment, check=True, capture_output=True, preexec_fn=lambda: os.sched_setaffinity(0, core)
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)  # the compiler's included
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def nodes_of(folder: Path, work: Work) -> int:
    """Return the number of nodes of the gradient model."""
    source = OnnxFile(str(folder / "model.onnx"), task="multiclass" if work.classes else None)
    loss = LOSSES["cross_entropy" if work.classes else "l2"]()
    return len(derive(add_loss(convert(None, ConvertConfig(source)), AddLossConfig(loss))).signature.graph.node)


def main() -> None:
    """Print a row for each model and number of epochs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_choice")
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], default=["mlp", "digits", "table", "large"])
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"| model | nodes · steps | {' | '.join(f'{engine}, s' for engine in ENGINES)} |")
    for name in options.models:
        work = MODELS[name]
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            prepare(folder, work, options.optimizer)
            nodes, problem = nodes_of(folder, work), json.loads((folder / "problem.json").read_text())
            for epochs in EPOCHS:
                (folder / "problem.json").write_text(json.dumps({**problem, "epochs": epochs}))
                rounds = [[seconds(folder, engine) for engine in ENGINES] for _ in range(options.rounds)]
                least = [min(times) for times in zip(*rounds, strict=True)]
                cells = " | ".join(f"{one:.2f}" for one in least)
                print(f"| {work.name} | {nodes * epochs * work.rows // work.batch:,} | {cells} |", flush=True)
                if sum(least) > LONGEST:
                    break


if __name__ == "__main__":
    main()
