"""The same epoch in C (c_step.c), compiled here with `-O3 -march=native`: what is left where nothing is dispatched."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from plain import Epoch, Weights, main

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC")


def build(problem: SimpleNamespace, threads: int) -> tuple[Epoch, Weights]:
    """Return the epoch and the weights."""
    source, library = Path(__file__).with_suffix(".c"), problem.folder / "c_step.so"
    subprocess.run(["gcc", *FLAGS, str(source), "-o", str(library), "-lm"], check=True)
    run = ctypes.CDLL(str(library)).epoch
    run.restype = ctypes.c_double
    theta = np.concatenate([w.ravel() for w in problem.weights])
    mean, squares = np.zeros_like(theta), np.zeros_like(theta)
    sizes, adam, done = np.array(problem.sizes, np.int32), int(problem.optimizer == "adam"), 0

    def epoch(index: np.ndarray) -> float:
        nonlocal done
        steps, batch = index.shape
        X, y = problem.X[index.ravel()], problem.y[index.ravel()]
        number, label = (None, y) if problem.classes else (y, None)
        arrays = [None if a is None else a.ctypes.data_as(ctypes.c_void_p) for a in (X, number, label)]
        state = [a.ctypes.data_as(ctypes.c_void_p) for a in (theta, mean, squares)]
        counts = (len(sizes) - 1, sizes.ctypes.data_as(ctypes.c_void_p), batch, steps, problem.classes, adam)
        loss = run(*counts, ctypes.c_double(problem.lr), ctypes.c_longlong(done), *arrays, *state)
        done += steps
        return float(loss)

    def weights() -> dict[str, np.ndarray]:
        parts = np.split(theta, np.cumsum([w.size for w in problem.weights])[:-1])
        return {n: p.reshape(w.shape) for n, p, w in zip(problem.names, parts, problem.weights, strict=True)}

    return epoch, weights


if __name__ == "__main__":
    main(build)
