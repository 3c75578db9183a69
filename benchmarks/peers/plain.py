"""The shared part of the peers: reading the problem, the order of rows, and the turns in which it is timed.

A peer is a plain script, `python peer.py FOLDER steady|job THREADS [WORD]`, for any interpreter that has numpy and the
peer's own library. FOLDER holds what `benchmarks/work.py` writes:

    problem.json   kind, sizes, classes, batch, optimizer, lr, seed, epochs, turn
    train.npz      X [N, features] float32, y [N] float32 or int64
    weights.npz    weight0, bias0, weight1, … float32, in the shapes of ONNX's Gemm (no transpose) and Conv
    model.onnx     the same network, raw scores
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np

# On a machine that others use too, a turn is timed by the processor's time of this process.
CLOCK = time.process_time if os.environ.get("BENCHMARKS_CLOCK") == "processor" else time.perf_counter
DEVICE = os.environ.get("BENCHMARKS_DEVICE", "cpu")  # or cuda: of the peers that can
CHECKED = 5  # epochs whose losses are compared between peers before anything is timed

Epoch = Callable[[np.ndarray], float]  # row numbers [steps, batch] → mean of the step losses, each before its update
Weights = Callable[[], dict[str, np.ndarray]]


def read(folder: Path) -> SimpleNamespace:
    """Return the problem: its settings, X, y and `weights`, a list of arrays in order."""
    problem = SimpleNamespace(folder=folder, **json.loads((folder / "problem.json").read_text()))
    with np.load(folder / "train.npz") as rows:
        problem.X, problem.y = rows["X"], rows["y"]
    with np.load(folder / "weights.npz") as arrays:
        problem.weights = [arrays[name] for name in arrays.files]
        problem.names = list(arrays.files)
    return problem


def order(problem: SimpleNamespace, number: int) -> np.ndarray:
    """Return the row numbers [steps, batch] of an epoch, counted from 1: ortpipe's own order."""
    rows = np.random.default_rng([problem.seed, number]).permutation(len(problem.y))
    return rows.reshape(-1, problem.batch)


class Turns:
    """Called after each epoch: says the losses of the first ones, then the seconds of every turn that it was given."""

    def __init__(self, problem: SimpleNamespace) -> None:
        self._turn, self._warm = problem.turn, max(CHECKED, problem.turn)
        self._losses: list[float] = []
        self._done, self._begun = 0, 0.0

    def __call__(self, loss: float) -> None:
        """Take an epoch's loss; at the end of a turn, wait for the next one."""
        now = CLOCK()
        self._done += 1
        if self._done <= CHECKED:
            self._losses.append(loss)
        if self._done < self._warm or (self._done - self._warm) % self._turn:
            return
        first = self._done == self._warm
        print(json.dumps({"losses": self._losses} if first else {"seconds": now - self._begun}), flush=True)
        if not sys.stdin.readline():
            sys.exit()
        self._begun = CLOCK()


def main(build: Callable[[SimpleNamespace, int], tuple[Epoch, Weights]]) -> None:
    """Train in endless turns, or do the whole job: all epochs, then the weights on disk as FOLDER/job/weights.npz."""
    problem, threads = read(Path(sys.argv[1])), int(sys.argv[3])
    epoch, weights = build(problem, threads)
    if sys.argv[2] == "job":
        losses = [epoch(order(problem, number)) for number in range(1, problem.epochs + 1)]
        np.savez(problem.folder / "job" / "weights.npz", **weights())
        print(json.dumps({"losses": losses}))
        return
    turns, number = Turns(problem), 0
    while True:
        number += 1
        turns(epoch(order(problem, number)))
