"""An epoch graph as a function compiled by XLA: once per batch size, for any number of steps."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax import lax

from ortpipe.errors import EngineError
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.xla.client import devices
from ortpipe.runtime.xla.interpret import Interpreter, check_operators
from ortpipe.runtime.xla.node import Array, Node

IMPL = "threefry2x32"  # the random number generator: identical on every device and in every version

read = functools.partial(lax.dynamic_index_in_dim, keepdims=False, allow_negative_indices=False)
write = functools.partial(lax.dynamic_update_index_in_dim, allow_negative_indices=False)


class Program:
    """A graph whose only Scan runs the steps; it is compiled on its first run.

    The number of steps is an argument of the compiled function: shorter arrays are padded, longer ones trigger another
    compilation. So an epoch's result is byte-identical no matter how it is divided.

    Args:
        model: its inputs are the Scan's states and scanned values, whose first dimension is `steps`; its outputs are
            the final states and scan outputs.
        weights: the values of initializers that have none in `model`.
        runtime: threads and provider.
        steps: the name of the dimension that counts steps.
        report: called with the seconds spent on tracing and compiling.

    Raises:
        ModelError: an operator, or a form of one, cannot be compiled; the device is missing; threads differ.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        weights: Mapping[str, np.ndarray],
        runtime: RuntimeConfig,
        *,
        steps: str,
        report: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        check_operators(model)
        self._model, self._weights, self._device = model, weights, devices(runtime)[0]
        self._options = _options(runtime)
        self._scanned = [_first_dimension(value) == steps for value in model.graph.input]
        self._names = [value.name for value in model.graph.input]
        self._carried = len(self._scanned) - sum(self._scanned)
        self._compiled: dict[tuple[Any, int], Any] = {}  # by the shapes that a step reads, and the number of steps
        self._inner: dict[str, Callable[..., tuple[Array, ...]]] = {}  # instead of nodes inside the step, by name
        self._report = report

    def run(self, feeds: Mapping[str, np.ndarray], seed: Sequence[int] = (0, 0), first: int = 0) -> list[np.ndarray]:
        """Return the outputs.

        Args:
            feeds: the inputs by name; not modified.
            seed: the seed of random numbers, two numbers below 2³².
            first: the number of the first step, which also enters the random numbers.
        """
        arguments = [feeds[name] for name in self._names]
        count = next(len(array) for array, scanned in zip(arguments, self._scanned, strict=True) if scanned)
        rows = tuple(array.shape[1:] for array, scanned in zip(arguments, self._scanned, strict=True) if scanned)
        room = min((steps for shapes, steps in self._compiled if shapes == rows and steps >= count), default=count)
        arguments = [
            _filled(array, room) if scanned else array for array, scanned in zip(arguments, self._scanned, strict=True)
        ]
        numbers = np.asarray(seed, np.uint32), np.int32(first), np.int32(count)
        with jax.enable_x64(True):
            if (rows, room) not in self._compiled:
                self._compiled[rows, room] = self._compile(arguments, numbers)
            results = self._guarded(self._compiled[rows, room], (*arguments, *numbers))
        return [array if place < self._carried else array[:count] for place, array in enumerate(results)]

    def _guarded(self, compiled: Any, arguments: Sequence[Any]) -> list[np.ndarray]:
        try:
            return [np.asarray(array) for array in compiled(*arguments)]
        except (RuntimeError, TypeError, ValueError) as error:
            raise EngineError(
                "XLA must run the model on these inputs.",
                got=(str(error).strip() or type(error).__name__).splitlines()[0],
                fix="Set {key}=onnxruntime.",
                key="engine",
            ) from error

    def _compile(self, arguments: Sequence[np.ndarray], numbers: Sequence[Any]) -> Any:
        started = time.perf_counter()
        donated = tuple(place for place, scanned in enumerate(self._scanned) if not scanned)
        with jax.default_device(self._device), jax.default_matmul_precision("highest"):
            traced = jax.jit(self._spread(self._epoch), donate_argnums=donated).lower(*arguments, *numbers)
            compiled = traced.compile(compiler_options=self._options)
        self._report(time.perf_counter() - started)
        return compiled

    def _spread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function as it runs on devices: on one."""
        return function

    def _epoch(self, *arguments: Array) -> tuple[Array, ...]:
        *inputs, seed, first, count = arguments
        interpreter = Interpreter(self._model, self._weights)
        key = jax.random.wrap_key_data(seed, impl=IMPL)

        def scan(node: Node, *inputs: Array) -> tuple[Array, ...]:
            assert node.run is not None
            run, body, split = node.run, node.get("body"), len(inputs) - node.get("num_scan_inputs")
            carried, scanned = tuple(map(jnp.asarray, inputs[:split])), inputs[split:]

            def step(values: tuple[Array, ...], rows: Sequence[Array], number: Array) -> Any:
                interpreter.key = jax.random.fold_in(key, number)
                results = [jnp.asarray(y) for y in run(body, *values, *rows)]
                return tuple(results[:split]), tuple(results[split:])

            def turn(number: Array, state: Any) -> Any:
                values, collected = state
                values, outputs = step(values, [read(x, number) for x in scanned], first + number)
                return values, tuple(write(x, y, number, 0) for x, y in zip(collected, outputs, strict=True))

            rows = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in scanned]
            outputs = jax.eval_shape(step, carried, rows, first)[1]
            collected = tuple(jnp.zeros((scanned[0].shape[0], *y.shape), y.dtype) for y in outputs)
            ended, collected = lax.fori_loop(np.int32(0), count, turn, (carried, collected))
            return (*ended, *collected)

        interpreter.instead = {"Scan": scan, **self._inner}
        return tuple(interpreter.run(self._model.graph, inputs))


class SeededRuns:
    """Runs of one program with one seed, which count their steps."""

    def __init__(self, program: Program, seed: Sequence[int]) -> None:
        self._program, self._done = program, 0
        self._seed = np.random.SeedSequence([*seed]).generate_state(2).tolist()

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs for the next steps."""
        results = self._program.run(feeds, self._seed, self._done)
        self._done += len(results[-1])
        return results


def _options(runtime: RuntimeConfig) -> dict[str, bool]:
    if runtime.provider == "cuda":
        # Fusing products into Triton kernels crashed the process if one is a convolution's kernel gradient (0.11.2).
        return {"xla_gpu_deterministic_ops": True, "xla_gpu_enable_triton_gemm": False}
    # A pool of one thread makes the step of a small network a sixth slower than no pool.
    return {"xla_cpu_multi_thread_eigen": False} if runtime.threads == 1 else {}


def _first_dimension(value: onnx.ValueInfoProto) -> str:
    dims = value.type.tensor_type.shape.dim
    return dims[0].dim_param if dims else ""


def _filled(array: np.ndarray, room: int) -> np.ndarray:
    """Return an array padded with rows of zeros."""
    if len(array) == room:
        return array
    filled = np.zeros((room, *array.shape[1:]), array.dtype)
    filled[: len(array)] = array
    return filled
