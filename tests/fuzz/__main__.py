"""Random graphs, their derivatives held against differences; failures made small and kept as ONNX text.

    python -m fuzz [--seed N] [--count N] [--first OPERATOR] [--keep FOLDER] [--minutes M] [--torch]

Each graph is drawn from its seed alone: `--seed 126 --count 1` draws number 126 again. By default the first seed
follows from the day, and is printed. The graphs run in a process of their own, so that one that kills it is counted.
Exit status 1 where a graph failed.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import sys
import time
from pathlib import Path

import onnxruntime

from fuzz.forms import FORMS
from fuzz.judge import AGREE, Outcome
from fuzz.minimise import keep
from fuzz.oracle import functions
from fuzz.worker import Worker, small, tried
from ortpipe.autodiff.table import RULES


def main(arguments: list[str] | None = None) -> int:
    """Judge some graphs, and print the counts by outcome."""
    options = _options(arguments)
    seeds = range(options.seed, options.seed + options.count)
    print(f"onnxruntime {onnxruntime.__version__}; seeds {seeds.start} to {seeds.stop - 1}", flush=True)
    counts, operators, failed = collections.Counter[str](), collections.Counter[str](), 0
    among = tuple(functions()) if options.torch else None
    end = time.monotonic() + 60 * options.minutes
    worker = Worker()
    for seed in seeds:
        if time.monotonic() > end:
            print(f"stopped in front of seed {seed}")
            break
        outcome, names = worker(tried, seed, options.first, among) or (Outcome("killed", "the process died"), [])
        counts[outcome.kind] += 1
        operators.update(dict.fromkeys(names, 1) if outcome.kind == AGREE else {})
        if outcome.failed or (options.all and outcome.kind != AGREE):
            failed += outcome.failed
            print(
                f"seed {seed}: {outcome.kind}: {' '.join(outcome.said.split())[:300]}\n    {' '.join(names)}",
                flush=True,
            )
            if options.keep:
                words = worker(small, seed, options.first, among) or f"// seed {seed}: kills the process\n"
                print(f"    {keep(options.keep, f'{outcome.kind} {seed}'.replace(' ', '-'), words)}", flush=True)
    worker.close()
    print("\n".join(f"{n:6} {kind}" for kind, n in counts.most_common()))
    never = sorted(kind for kind in {*FORMS, *RULES} if not operators[kind])
    print(f"{len(operators)} operators in graphs that agree; in none: {', '.join(never) or '–'}")
    return int(failed > 0)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=str(__doc__).partition("\n")[0])
    today = int(f"{datetime.date.today():%y%m%d}") * 10_000
    parser.add_argument("--seed", type=int, default=today, help="of the first graph; by default by the day")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", choices=sorted(FORMS), help="an operator that is in every graph")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where failures are kept, made small")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after these")
    parser.add_argument("--torch", action="store_true", help="draw operators that PyTorch judges alone; needs torch")
    parser.add_argument("--all", action="store_true", help="name what ends otherwise, too: refusals, missing kernels")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
