"""The floor of a training step: c_step.c, compiled with `-O3 -march=native`, with scipy's BLAS for matrix products."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import scipy
from plain import Epoch, Weights, main
from scipy.linalg import cython_blas

FLAGS = ("-O3", "-march=native", "-ffast-math", "-shared", "-fPIC")


def sgemm() -> ctypes.c_void_p:
    """Return the address of the matrix product in the BLAS of scipy."""
    capsule = scipy.LowLevelCallable.from_cython(cython_blas, "sgemm").function
    name, pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_void_p(pointer(capsule, name(capsule)))


def build(problem: SimpleNamespace, threads: int) -> tuple[Epoch, Weights]:
    """Return the epoch and the weights."""
    source, library = Path(__file__).with_suffix(".c"), problem.folder / "c_step.so"
    subprocess.run(["gcc", *FLAGS, str(source), "-o", str(library), "-lm"], check=True)
    run = ctypes.CDLL(str(library)).epoch
    run.restype = ctypes.c_double
    product = sgemm()
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
        loss = run(product, *counts, ctypes.c_double(problem.lr), ctypes.c_longlong(done), *arrays, *state)
        done += steps
        return float(loss)

    def weights() -> dict[str, np.ndarray]:
        parts = np.split(theta, np.cumsum([w.size for w in problem.weights])[:-1])
        return {n: p.reshape(w.shape) for n, p, w in zip(problem.names, parts, problem.weights, strict=True)}

    return epoch, weights


if __name__ == "__main__":
    main(build)
