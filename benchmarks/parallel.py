"""One training by two threads, two processes and two Ray actors: time per epoch, and a simulation of more workers.

    python -m benchmarks.parallel [--rounds 3] [--epochs 3] [--transports processes ray]

The ways take turns; each time is the median over rounds and epochs, the first epoch of a run left out. With c ms of
computation in each of two workers and x ms of exchange, measured there, n workers and K = max(8, n) slices take
c · 2 · ⌈K/n⌉/K + x · n/2 ms: the process that trains checks and adds one sum of gradients per worker. The efficiency is
2 · c / n divided by that.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import statistics
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    Artifact,
    ConvertConfig,
    Data,
    Rows,
    RuntimeConfig,
    SplitConfig,
    TrainConfig,
    add_loss,
    convert,
    derive,
    split,
    train,
)
from ortpipe.parallel import ParallelConfig
from ortpipe.stages import Epoch, Remark
from ortpipe.stages.convert.sources import SOURCES

Case = tuple[str, Any, tuple[int, ...], int, int]  # exchanges, network, shape of a row, rows, batch
CASES: dict[str, Case] = {
    "large MLP": ("step", SOURCES["mlp"](hidden=(1024, 1024), dropout=0.0), (256,), 8192, 1024),
    "small MLP": ("epoch", SOURCES["mlp"](hidden=(32,), dropout=0.0), (20,), 100_000, 100),
    "CNN": ("step", SOURCES["cnn"](), (1, 28, 28), 4096, 256),
}
WORKERS = (4, 8, 16, 32, 64)


def model_of(case: Case) -> tuple[Artifact, Data]:
    """Return the gradient model and the rows of a case: two classes."""
    _, network, shape, count, _ = case
    x = np.random.default_rng(0).normal(size=(count, *shape)).astype(np.float32)
    data = split(Rows({"x": x}, (x.reshape(count, -1)[:, 0] > 0).astype(np.int64)), SplitConfig(test=0.0))
    loss = add_loss(convert(None, ConvertConfig(network), data=data), AddLossConfig(LOSSES["log"]()), data=data)
    return derive(loss), data


def run(case: Case, model: Artifact, data: Data, way: str, epochs: int) -> tuple[list[float], dict[str, float]]:
    """Return the seconds of epochs, and the measured times of exchanges."""
    times, measured = list[float](), dict[str, float]()

    def report(event: object) -> None:
        if isinstance(event, Epoch):
            times.append(time.perf_counter())
        elif isinstance(event, Remark):
            measured.update(event.values)

    config = TrainConfig(OPTIMIZERS["sgd"](0.01), epochs=epochs + 1, batch_size=case[4])
    if way != "threads":
        parallel = ParallelConfig(slices=8, every=case[0], transport=way, workers=2)
        config = dataclasses.replace(config, parallel=parallel)
    runtime = RuntimeConfig(threads=2 if way == "threads" else 1)
    train(model, config, data=data, runtime=runtime, report=report)
    return np.diff(times).tolist(), measured


def simulated(computed: float, exchanged: float) -> Iterable[str]:
    """Yield the milliseconds per exchange, and the efficiency, of more workers."""
    for workers in WORKERS:
        slices = max(8, workers)
        whole = computed * 2 * math.ceil(slices / workers) / slices + exchanged * workers / 2
        yield f"{whole:.3g} ({2 * computed / workers / whole:.2f})"


def main() -> None:
    """Measure and print two tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--transports", nargs="+", choices=["processes", "ray"], default=["processes", "ray"])
    options = parser.parse_args()
    ways, simulations = ["threads", *options.transports], list[str]()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; seconds per epoch, and 2 threads' divided by it\n")
    print(f"| model | every | {' | '.join(ways)} |\n|{' --- |' * (2 + len(ways))}")
    for name, case in CASES.items():
        model, data = model_of(case)
        seconds, measured = {way: list[float]() for way in ways}, dict[str, dict[str, float]]()
        for _ in range(options.rounds):
            for way in ways:
                new, measured[way] = run(case, model, data, way, options.epochs)
                seconds[way] += new
        middle = {way: statistics.median(times) for way, times in seconds.items()}
        cells = [f"{middle[way]:.3g} ({middle['threads'] / middle[way]:.2f})" for way in ways]
        print(f"| {name} | {case[0]} | {' | '.join(cells)} |", flush=True)
        for way in options.transports:
            times = measured[way]["parallel/compute_ms"], measured[way]["parallel/exchange_ms"]
            row = [f"{times[0]:.3g}", f"{times[1]:.3g}", *simulated(*times)]
            simulations.append(f"| {name}, {way} | {' | '.join(row)} |")
    print("\nms per exchange, and efficiency:\n\n| model | compute | exchange |", *(f"{n} |" for n in WORKERS))
    print(f"|{' --- |' * (3 + len(WORKERS))}", *simulations, f"\nload {os.getloadavg()[0]:.1f}", sep="\n")


if __name__ == "__main__":
    main()
