"""Run a model in onnxruntime."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype

from ortpipe.doors import later
from ortpipe.errors import ModelError
from ortpipe.graph.core.formulas import Model
from ortpipe.graph.core.protos import Weights, graphs, is_large, weigh
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.library import ort

if TYPE_CHECKING:  # for models that are checked here, large models, other devices, subnormal numbers and known bugs
    from ortpipe.graph.core.apart import serialized
    from ortpipe.graph.core.check import finish_apart
    from ortpipe.graph.files.serial import on_disk
    from ortpipe.graph.forms.modes import moves_statistics
    from ortpipe.runtime.providers import check_chosen, check_compiled_in
    from ortpipe.runtime.quirks import failing_fusions, wrong_optimizations
    from ortpipe.runtime.subnormal import first_session, flushed
else:
    later(__name__)

PROVIDERS = {"cpu": ["CPUExecutionProvider"], "cuda": ["CUDAExecutionProvider", "CPUExecutionProvider"]}
MAPPED = 2**26  # bytes of weights from which on the runtime maps them from a file instead of copying them repeatedly
TRIVIAL = '<ir_version: 10, opset_import: ["": 21]> g (float[N] x) => (float[N] y) { y = Neg(x) }'
LARGEST = 2**27  # bytes of the largest value of a prediction; a few values of such a size exist at the same time
T = TypeVar("T")


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
        model: onnx.ModelProto | Model,
        runtime: RuntimeConfig | None = None,
        *,
        weights: Weights | None = None,
        fused: bool = True,
        planned: bool = True,
        flushes: bool = False,
    ) -> None:
        if not isinstance(model, onnx.ModelProto):
            model, weights = finish_apart(model, deep=True)
        runtime = runtime or RuntimeConfig()
        provider = runtime.provider if runtime.engine == "onnxruntime" else "cpu"
        if provider != "cpu":
            check_compiled_in(provider)
        self._around: Callable[[], Any] = flushed if flushes else contextlib.nullcontext
        self._inputs = {value.name: _dims(value) for value in model.graph.input}
        typed = (v for v in (*model.graph.value_info, *model.graph.output) if v.type.tensor_type.elem_type)
        self._values = [(tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type).itemsize, _dims(v)) for v in typed]
        options = _options(runtime.threads, fused=fused, planned=planned, flushes=flushes)
        self._session = _loaded(model, weights, options, provider)
        if provider != "cpu":
            check_chosen(self._session, provider)
        # If a layer is used twice, its kernel overwrites the running statistics that it is fed.
        normalizing = (n for graph in graphs(model.graph) for n in graph.node if n.op_type == "BatchNormalization")
        self._moves_statistics = any(map(moves_statistics, normalizing))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The output names, in order."""
        return tuple(o.name for o in self._session.get_outputs())

    def run(self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None) -> list[np.ndarray]:
        """Return the named outputs, or all of them; raise on inputs with an unknown name, shape or type."""
        names, safe = list(outputs) if outputs is not None else None, self._safe(feeds)
        return self._guarded(lambda options: list(self._session.run(names, safe, options)))

    def rows_at_once(self, feeds: Mapping[str, np.ndarray]) -> int:
        """Return the number of rows with which no value has more than LARGEST bytes, at least 1.

        A size that is an input's first one is that of the rows. Other free sizes are those of `feeds`, or else 1.
        """
        fed = [(self._inputs[name], array) for name, array in feeds.items() if self._inputs.get(name)]
        rows = {dims[0] for dims, _ in fed if isinstance(dims[0], str)}
        sizes = {dim: n for dims, array in fed for dim, n in zip(dims[1:], array.shape[1:], strict=False)}
        most = LARGEST
        for size, dims in self._values:
            if axes := sum(dim in rows for dim in dims):  # 2 of a value that compares the rows with each other
                others = (dim if isinstance(dim, int) else sizes.get(dim, 1) for dim in dims if dim not in rows)
                most = min(most, int((LARGEST // (size * math.prod(others) or 1)) ** (1 / axes)))
        return max(1, most)

    def predict(self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
        """Return outputs that have one entry per row, as all inputs do; large values are computed part by part."""
        rows, size = len(next(iter(feeds.values()))), self.rows_at_once(feeds)
        if rows <= size:
            return self.run(feeds, outputs)
        parts = ({name: array[first : first + size] for name, array in feeds.items()} for first in range(0, rows, size))
        return [np.concatenate(arrays) for arrays in zip(*(self.run(part, outputs) for part in parts), strict=True)]

    def run_into(self, feeds: Mapping[str, np.ndarray], results: Mapping[str, np.ndarray]) -> None:
        """Write outputs into the given arrays, which must have their shapes and types in C order.

        The arrays belong to the caller; those of `run` use the session's memory, which never shrinks.
        """
        assert all(array.flags.c_contiguous for array in results.values())
        binding = self._session.io_binding()
        for name, array in self._safe(feeds).items():
            binding.bind_cpu_input(name, array)
        for name, array in results.items():
            binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        self._guarded(lambda options: self._session.run_with_iobinding(binding, options))

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
            fix = "Check the inputs' names, shapes and types against the model's."
            raise _failed("ONNX Runtime must run the model on these inputs.", error, fix) from error
        finally:
            _running.remove(options)


def _dims(value: onnx.ValueInfoProto) -> list[int | str]:
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in dims]


def _options(threads: int, *, fused: bool, planned: bool, flushes: bool) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.enable_mem_pattern = planned
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # pairs round as in training
    if flushes:
        first_session()
        options.add_session_config_entry("session.set_denormal_as_zero", "1")  # applies to the session's threads
    if not fused:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def _loaded(model: onnx.ModelProto, weights: Weights | None, options: Any, provider: str) -> Any:
    """Return the runtime's session, without the optimizations that fail for this model."""
    kinds = {node.op_type for graph in graphs(model.graph) for node in graph.node}
    without: set[str] = wrong_optimizations(model) if kinds & {"Conv", "Dropout"} else set()
    try:
        if weigh(model) > MAPPED or is_large(model):
            with on_disk(model, weights) as path:
                return _unfused(path, options, provider, without)
        content = serialized(model, weights) if weights else model.SerializeToString()
        return _unfused(content, options, provider, without)
    except Exception as error:
        fix = f"Use operators and types that onnxruntime has kernels for on the {provider.upper()}."
        raise _failed("ONNX Runtime must load the model.", error, fix) from error


def _unfused(model: str | bytes, options: Any, provider: str, without: set[str]) -> Any:
    try:
        return ort.InferenceSession(model, options, providers=PROVIDERS[provider], disabled_optimizers=without)
    except Exception as error:
        if not (failing := failing_fusions(error) - without):
            raise
        return _unfused(model, options, provider, without | failing)


def _failed(rule: str, error: Exception, fix: str) -> ModelError:
    return ModelError(rule, got=(str(error).strip() or type(error).__name__).splitlines()[0], fix=fix)


_running: list[ort.RunOptions] = []


def terminate() -> None:
    """Stop every run at its next node, from another thread; the run raises ModelError."""
    for options in list(_running):
        options.terminate = True
