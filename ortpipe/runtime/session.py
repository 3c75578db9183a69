"""Run a model in onnxruntime."""

import contextlib
import ctypes
import functools
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.errors import EngineError, ModelError
from ortpipe.graph.core.apart import Weights, pieces
from ortpipe.graph.core.check import finish_apart
from ortpipe.graph.core.query import graphs
from ortpipe.graph.core.sound import is_large, weigh
from ortpipe.graph.files.serial import on_disk
from ortpipe.graph.forms.modes import moves_statistics
from ortpipe.runtime import xla
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.library import ort
from ortpipe.runtime.quirks import failing_fusions, fatal_fusions

PROVIDERS = {"cpu": ["CPUExecutionProvider"], "cuda": ["CUDAExecutionProvider", "CPUExecutionProvider"]}
MAPPED = 2**26  # bytes of weights from which on the runtime maps them from a file instead of copying them repeatedly

TRIVIAL = '<ir_version: 10, opset_import: ["": 21]> g (float[N] x) => (float[N] y) { y = Neg(x) }'

T = TypeVar("T")
# The word of C's fenv_t with the floating-point modes, and its bits that flush results and inputs to zero: MXCSR on
# x86-64 (FTZ and DAZ), FPCR on ARM (FZ). Other systems have other layouts and are left unchanged.
MODES = {("Linux", "x86_64"): (7, 0x8040), ("Linux", "aarch64"): (0, 1 << 24)}


class Session:
    """A model loaded into ONNX Runtime, with deterministic kernels.

    Args:
        model: the model, or values and nodes, which are cleaned and checked; a large one goes through a temporary file.
        runtime: threads and provider; by default one CPU thread, as for all graphs that another engine does not run.
        weights: the values of initializers that have none in `model`.
        fused: enable graph fusions; in a quantized model they use integer kernels, which round differently.
        flushes: treat subnormal numbers as 0 during runs.
        planned: allocate the memory of all values in one block on later runs, laid out as in the first run: a
            microsecond or two less for small graphs, up to twice the memory for large ones.

    Raises:
        ModelError: the runtime rejects the model, or the provider is not available.
    """

    def __init__(
        self,
        model: onnx.ModelProto | ir.Model,
        runtime: RuntimeConfig | None = None,
        *,
        weights: Weights | None = None,
        fused: bool = True,
        planned: bool = True,
        flushes: bool = False,
    ) -> None:
        if isinstance(model, ir.Model):
            model, weights = finish_apart(model, deep=True)
        runtime = runtime or RuntimeConfig()
        provider = runtime.provider if runtime.engine == "onnxruntime" else "cpu"
        options, providers = ort.SessionOptions(), PROVIDERS[provider]
        options.intra_op_num_threads = runtime.threads
        options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        options.enable_mem_pattern = planned
        options.log_severity_level = 4
        options.add_session_config_entry("session.disable_quant_qdq", "1")  # pairs round as in training
        self._around = flushed if flushes else contextlib.nullcontext
        if flushes:
            _first()
            options.add_session_config_entry("session.set_denormal_as_zero", "1")  # applies to the session's threads
        if not fused:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if providers[0] not in ort.get_available_providers():
            raise _not_here(provider, "has none")
        without = fatal_fusions(model)
        try:
            if weigh(model) > MAPPED or is_large(model):
                with on_disk(model, weights) as path:
                    self._session = _loaded(path, options, providers, without)
            else:
                content = b"".join(pieces(model, weights)) if weights else model.SerializeToString()
                self._session = _loaded(content, options, providers, without)
        except Exception as error:
            raise ModelError(
                "ONNX Runtime must load the model.",
                got=(str(error).strip() or type(error).__name__).splitlines()[0],
                fix=f"Use operators and types that onnxruntime has kernels for on the {provider.upper()}.",
            ) from error

        # If a layer is used twice, its kernel overwrites the running statistics that it is fed.
        self._moves_statistics = any(moves_statistics(node) for graph in graphs(model.graph) for node in graph.node)
        chosen = self._session.get_providers()[0]
        if chosen != providers[0]:
            raise _not_here(provider, f"fell back to {chosen}")

    @property
    def outputs(self) -> tuple[str, ...]:
        """The output names, in order."""
        return tuple(o.name for o in self._session.get_outputs())

    def run(self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None) -> list[np.ndarray]:
        """Return the named outputs, or all of them; raise on inputs with an unknown name, shape or type."""
        names, safe = list(outputs) if outputs is not None else None, self._safe(feeds)
        return self._guarded(lambda options: list(self._session.run(names, safe, options)))

    def run_into(self, feeds: Mapping[str, np.ndarray], results: Mapping[str, np.ndarray]) -> None:
        """Write outputs into the given arrays, which must have their shapes and types in C order.

        The arrays belong to the caller; those of `run` use the session's memory, which never shrinks.
        """
        assert all(array.flags.c_contiguous for array in results.values())
        safe = self._safe(feeds)

        def run(options: Any) -> None:
            binding = self._session.io_binding()
            for name, array in safe.items():
                binding.bind_cpu_input(name, array)
            for name, array in results.items():
                binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
            self._session.run_with_iobinding(binding, options)

        self._guarded(run)

    def _safe(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the feeds with vectors copied: kernels may write to them, for example running statistics."""
        if not self._moves_statistics:
            return dict(feeds)
        return {name: np.array(array) if np.ndim(array) == 1 else array for name, array in feeds.items()}

    def _guarded(self, run: Callable[[Any], T]) -> T:
        options = ort.RunOptions()
        _running.append(options)
        try:
            with self._around():
                return run(options)
        except Exception as error:
            raise ModelError(
                "ONNX Runtime must run the model on these inputs.",
                got=(str(error).strip() or type(error).__name__).splitlines()[0],
                fix="Check the inputs' names, shapes and types against the model's.",
            ) from error
        finally:
            _running.remove(options)


@functools.cache
def _first() -> None:
    """Load a default session: a process's first session sets the caller's handling of subnormal numbers."""
    Session(onnx.parser.parse_model(TRIVIAL))


def _loaded(model: str | bytes, options: Any, providers: Sequence[str], without: set[str]) -> Any:
    """Load a model without the optimizations in `without` and those that create nodes without a kernel."""
    while True:
        try:
            return ort.InferenceSession(model, options, providers=providers, disabled_optimizers=without)
        except Exception as error:
            failing = failing_fusions(error) - without
            if not failing:
                raise
            without = without | failing


_running: list[ort.RunOptions] = []


def terminate() -> None:
    """Stop every run at its next node, from another thread; the run raises ModelError."""
    for options in list(_running):
        options.terminate = True


def _not_here(provider: str, what: str) -> EngineError:
    return EngineError(
        "{key} must be available on this machine.",
        got=f"{provider}: onnxruntime {ort.__version__} {what}",
        fix="Install the GPU's driver, CUDA and an onnxruntime build for it, or set {key}=cpu.",
        key="provider",
    )


def check_provider(runtime: RuntimeConfig) -> None:
    """Raise before any work if a provider is missing or onnxruntime falls back to another one."""
    if runtime.engine != "onnxruntime":
        xla.check_client(runtime)
    elif runtime.provider != "cpu":
        Session(onnx.parser.parse_model(TRIVIAL), runtime)


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    """Treat subnormal numbers as 0 in this thread within the block, and restore the mode afterwards.

    onnxruntime's `session.set_denormal_as_zero` only applies to a session's own threads; the caller's thread takes it
    from the first session of the process, permanently.
    """
    word, bits = MODES.get((platform.system(), platform.machine()), (0, 0))
    if not bits:
        yield
        return
    libm = _libm()
    environment = (ctypes.c_uint32 * 64)()
    libm.fegetenv(environment)
    before = environment[word]
    environment[word] = before | bits
    libm.fesetenv(environment)
    try:
        yield
    finally:
        environment[word] = before
        libm.fesetenv(environment)


@functools.cache
def _libm() -> ctypes.CDLL:
    return ctypes.CDLL(None)
