"""An epoch graph as a compiled function: once per shape of a batch, for any number of steps."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

from ortpipe.errors import EngineError
from ortpipe.runtime.c.compiler import build, compiler, load_blas
from ortpipe.runtime.c.plan import ALIGNED
from ortpipe.runtime.c.reader import check_operators, states_of
from ortpipe.runtime.c.source import CSource, emit
from ortpipe.runtime.config import RuntimeConfig


def check_compiler(runtime: RuntimeConfig) -> None:
    """Raise if there is no compiler or no BLAS, or if another device or more than one thread is configured."""
    if (runtime.provider, runtime.threads) != ("cpu", 1):
        raise EngineError(
            "{at}engine=c trains on one thread of the CPU.",
            got=f"provider={runtime.provider}, threads={runtime.threads}",
            fix="Set {at}provider=cpu and {at}threads=1, or {at}engine=onnxruntime.",
        )
    compiler()
    load_blas()


class CompiledEpoch:
    """A graph whose only node is a Scan over steps; it is compiled on its first run.

    Args:
        model: the epoch graph.
        weights: the values of initializers that have none in `model`.
        report: called with the seconds spent on writing and compiling.

    Raises:
        EngineError: an operator, or a form of one, is not compiled, or there is no compiler.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        weights: Mapping[str, np.ndarray],
        *,
        report: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        check_operators(model)
        self._model, self._weights, self._report = model, weights, report
        self._compiled = dict[tuple[tuple[int, ...], ...], _Function]()  # by the shapes of rows in a step
        [scan] = [node for node in model.graph.node if node.op_type == "Scan"]
        self._states = states_of(scan)
        self._rows = [*scan.input[len(self._states) :]]

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise EngineError if the graph is not compiled for inputs of these shapes, in one step."""
        emit(self._model, self._weights, shapes)

    def run(self, feeds: Mapping[str, np.ndarray], seed: Sequence[int] = (0, 0), first: int = 0) -> list[np.ndarray]:
        """Return the outputs.

        Args:
            feeds: the inputs by name; not modified.
            seed: the seed of random numbers, two numbers below 2³².
            first: the number of the first step, which also enters the random numbers.
        """
        key = tuple([feeds[name].shape[1:] for name in self._rows])
        if key not in self._compiled:
            started = time.perf_counter()
            shapes = {name: feeds[name].shape for name in self._states} | dict(zip(self._rows, key, strict=True))
            self._compiled[key] = _Function(emit(self._model, self._weights, shapes))
            self._report(time.perf_counter() - started)
        return self._compiled[key](feeds, len(feeds[self._rows[0]]), seed, first)


class _Function:
    """A compiled source with the arrays that all of its runs use, whose addresses are read once."""

    def __init__(self, source: CSource) -> None:
        self._seeded, self._epoch = source.seeded, build(source.text, blas=source.blas).epoch
        numbers = [ctypes.c_int64, *([ctypes.c_uint64, ctypes.c_int64] if source.seeded else [])]
        self._epoch.argtypes = [*numbers, *[ctypes.c_void_p] * (len(source.arguments) + 1)]
        self._epoch.restype = None
        states, self._rows, constants, self._outputs = (
            [x for x in source.arguments if x.role == role] for role in ("state", "row", "constant", "output")
        )
        self._states = [(x.name, _aligned(x.shape, x.dtype)) for x in states]
        self._kept = [
            [array for _, array in self._states],
            [np.asarray(source.constants[x.c_name], order="C") for x in constants],
            [_aligned((source.workspace,), np.dtype(np.uint8))],
        ]
        self._places = [[array.ctypes.data for array in arrays] for arrays in self._kept]

    def __call__(
        self, feeds: Mapping[str, np.ndarray], steps: int, seed: Sequence[int], first: int
    ) -> list[np.ndarray]:
        for name, array in self._states:
            array[...] = feeds[name]
        rows = [np.asarray(feeds[x.name], x.dtype, order="C") for x in self._rows]
        outputs = [np.empty((steps, *x.shape), x.dtype) for x in self._outputs]
        numbers = (steps, seed[0] << 32 | seed[1], first) if self._seeded else (steps,)
        states, constants, work = self._places
        read, written = ([array.ctypes.data for array in arrays] for arrays in (rows, outputs))
        self._epoch(*numbers, *states, *read, *constants, *written, *work)
        return [*[array.copy() for _, array in self._states], *outputs]


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return a new array that starts at a multiple of ALIGNED bytes."""
    block = np.empty(math.prod(shape) * dtype.itemsize + ALIGNED, np.uint8)
    return np.ndarray(shape, dtype, block, -block.ctypes.data % ALIGNED)


class SeededEpochs:
    """Runs of one program with one seed, which count their steps."""

    def __init__(self, program: CompiledEpoch, seed: Sequence[int]) -> None:
        self._program, self._done = program, 0
        self._seed = np.random.SeedSequence([*seed]).generate_state(2).tolist()

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise EngineError as the program does."""
        self._program.check(shapes)

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs for the next steps."""
        results = self._program.run(feeds, self._seed, self._done)
        self._done += len(results[-1])
        return results
