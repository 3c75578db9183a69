"""Every peer that is installed, side by side: time per step, time and memory of whole jobs, growth; as Markdown.

    python -m benchmarks [--also /path/to/other/python …] [--output table.md]

A peer runs in the first interpreter that has its packages: this one or one of the others. The report names the other
peers as absent. Each peer is a process, pinned to as many cores as it has threads. The peers take turns, and
every ratio is the median of the ratios within a round. A peer is timed only if its losses equal those of ortpipe.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.contest import ON_GPU, PEERS, Contest, entrants, versions
from benchmarks.report import Results, base_of, report
from benchmarks.work import GROWTH, MODELS, OPTIMIZERS


def main(arguments: list[str] | None = None) -> None:
    """Run the contests and print or write the report."""
    options = _options(arguments)
    pythons = [sys.executable, *options.also]
    has = versions(pythons)
    python = {name: path for name, path in entrants(pythons, has).items() if name in options.peers}
    results = Results(has=has, python=dict(python), options=options)
    if (base := base_of(results)) not in python:
        chosen, able = (" ".join(map(repr, names)) or "none" for names in (options.peers, python))
        raise SystemExit(
            f"Every peer is held against {base!r}, which must run.\n"
            f"Got: --peers {chosen}; of them can run: {able}.\n"
            "Add it to --peers, or install what it needs."
        )
    failure = None
    try:
        _contests(results)
    except SystemExit as error:  # report the measurements before the failure
        failure = error
    text = report(results)
    if options.output is None:
        print(text)
    else:
        options.output.write_text(text)
    if failure is not None:
        raise failure


def _contests(results: Results) -> None:
    options, python = results.options, results.python
    with tempfile.TemporaryDirectory() as scratch:
        for model in options.models:
            for optimizer in options.optimizers:
                for threads in options.threads:
                    work = MODELS[model]
                    if options.quick:
                        work = dataclasses.replace(work, rows=16 * work.batch, turn=1)
                    print(f"{work.name}, {optimizer}, {threads} threads …", file=sys.stderr, flush=True)
                    contest = Contest.of(Path(scratch, model, optimizer), work, optimizer, threads, python)
                    key = (model, optimizer, threads)
                    if options.rounds:
                        results.steady[key] = contest.steady(options.rounds)
                    if options.jobs:
                        results.job[key] = contest.job(options.jobs, uncounted=0 if options.quick else 1)
        for work in GROWTH if options.growth else ():
            print(f"growth: {work.name} …", file=sys.stderr, flush=True)
            contest = Contest.of(Path(scratch, "growth"), work, "sgd", 1, python)
            results.growth[work.name] = contest.steady(options.rounds)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--also", action="append", default=[], metavar="PYTHON", help="another interpreter for peers")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=25, help="of steady turns; 0 leaves them out")
    parser.add_argument("--jobs", type=int, default=5, help="rounds of whole jobs; 0 leaves them out")
    parser.add_argument("--peers", nargs="+", choices=[p.name for p in PEERS], default=[p.name for p in PEERS])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: of the peers that train on one")
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall", help="of turns; see peers/plain.py")
    parser.add_argument("--no-growth", dest="growth", action="store_false")
    parser.add_argument("--quick", action="store_true", help="few rows, one round: whether it runs, not how fast")
    parser.add_argument("--output", type=Path, help="the file to write; else it is printed")
    options = parser.parse_args(arguments)
    os.environ["BENCHMARKS_CLOCK"], os.environ["BENCHMARKS_DEVICE"] = options.clock, options.device
    if options.device == "cuda":
        options.peers, options.jobs, options.growth = [p for p in options.peers if p in ON_GPU], 0, False
    if options.quick:
        options.rounds, options.jobs, options.growth = min(options.rounds, 2), min(options.jobs, 1), False
    return options


if __name__ == "__main__":
    main()
