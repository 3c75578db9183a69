"""OrtGradientForwardBackward: an ONNX graph as a function with a forward and a backward pass."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np
import onnx

from ortpipe import RuntimeConfig
from ortpipe.compat.devices import array_of, cpu, provider_to_device
from ortpipe.compat.forward_backward_graphs import Graphs, build
from ortpipe.compat.models import saved
from ortpipe.compat.parameters import check_known, warn_unused
from ortpipe.errors import ConfigError, ModelError, TrainError, nearest
from ortpipe.runtime import Session


class Tensor(np.ndarray):
    """An array that also has `numpy()`, as an OrtValue does."""

    def numpy(self) -> np.ndarray:
        """Return the plain array."""
        return self.view(np.ndarray)


@dataclass(eq=False, repr=False)
class OrtGradientForwardBackward:
    """The forward and backward pass of a model f(X, w): y = f(X, w), and gᵀ·∂y/∂X, gᵀ·∂y/∂w of output gradients g.

    `new_instance()` returns the function. A batch is a list of the inputs, then the trained weights in the order
    of `weights_to_train`; gradients come in the same order, None for an input that is no float. Forward saves what
    backward needs, so several forwards may come before their backwards, and dropout masks are the same in both. The
    original required weights in alphabetical order, failed on models with more outputs than inputs, and returned
    memory that it later overwrote.

    Args:
        onnx_model: the model; it stays untouched.
        weights_to_train: initializers, in any order; by default the weights, biases and embeddings that an
            output depends on.
        input_names: the inputs that a batch lists, by default all in the model's order.
        output_names: the outputs to compute, by default all.
        class_name: the name of the function's class, `cls_type_`.
        sess_options: an onnxruntime.SessionOptions; only its number of threads is used.
        providers: `cpu` or CPUExecutionProvider, once or for every input.
        provider_options, run_options, graph_builder_config, device_index, debug: not used; they raise a warning.
        enable_logging: log construction and calls to the logger `ortpipe`.

    Raises:
        ConfigError: an unknown name, a weight twice, or a provider other than the CPU's.
        DeriveError: an operator has no gradient.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
    ...   g (float[N,2] X) => (float[N,1] y) <float[2,1] w = {1, 2}> { y = MatMul(X, w) }''')
    >>> run = OrtGradientForwardBackward(model).new_instance()
    >>> X, w = np.array([[3, 4]], np.float32), np.array([[1], [2]], np.float32)
    >>> run.forward([X, w], training=True)[0].numpy()
    array([[11.]], dtype=float32)
    >>> [g.numpy().tolist() for g in run.backward([np.array([[10]], np.float32)])]
    [[[10.0, 20.0]], [[30.0], [40.0]]]

    In PyTorch, wrap it in a `torch.autograd.Function` with one instance per call, so that any graph of calls works::

        class Graph(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *inputs):
                ctx.run = forward_backward.new_instance()
                outputs = ctx.run.forward(inputs, training=True)
                return tuple(torch.from_numpy(y.numpy()) for y in outputs)

            @staticmethod
            def backward(ctx, *gradients):
                return tuple(torch.from_numpy(g.numpy()) for g in ctx.run.backward(gradients, retain=True))

    Source: name, arguments and methods of onnxcustom's class; the gradients are those of the derive stage.
    """

    onnx_model: onnx.ModelProto
    weights_to_train: Sequence[str] | None = None
    input_names: Any = None  # names, or None for all
    output_names: Any = None
    class_name: str | None = None
    sess_options: InitVar[Any] = None
    providers: Any = None
    provider_options: Any = None
    run_options: Any = None
    graph_builder_config: Any = None
    device_index: int = 0
    enable_logging: bool = False
    debug: bool = False
    cls_type_: type[OrtGradientForwardBackwardFunction] = field(init=False)

    def __post_init__(self, sess_options: Any) -> None:
        self.class_name = self.class_name or "OrtGradientForwardBackwardFunction"
        self.threads = max(1, getattr(sess_options, "intra_op_num_threads", 1))
        self.providers = _cpu_only(self.providers)
        warn_unused(
            self, provider_options=None, run_options=None, graph_builder_config=None, device_index=0, debug=False
        )
        weights = [t.name for t in self.onnx_model.graph.initializer]
        inputs = [i.name for i in self.onnx_model.graph.input if i.name not in weights]
        outputs = [o.name for o in self.onnx_model.graph.output]
        if self.weights_to_train is not None:
            self.weights_to_train = _checked_names("weight", self.weights_to_train, weights)
        self.input_names = _checked_names("input", inputs if self.input_names is None else self.input_names, inputs)
        self.output_names = _checked_names(
            "output", outputs if self.output_names is None else self.output_names, outputs
        )
        self._build()

    def _build(self) -> None:
        graphs = build(self.onnx_model, self.weights_to_train, self.input_names, self.output_names)
        self.weights_to_train = list(graphs.weights)
        logger = logging.getLogger("ortpipe") if self.enable_logging else None
        runtime = RuntimeConfig(self.threads)
        forward, evaluation, backward = (
            Session(graph, runtime) for graph in (graphs.forward, graphs.evaluation, graphs.backward)
        )
        attributes = {
            "_graphs": graphs,
            "_forward": forward,
            "_evaluation": evaluation,
            "_backward": backward,
            "_sess": forward._session,
            "_sess_eval": evaluation._session,
            "_logger": logger,
            "_debug": self.debug,
            "_run_options": self.run_options,
            "_input_names": list(graphs.inputs),
            "_grad_input_names": [*graphs.inputs, *graphs.weights],
            "_onx_inp": [*graphs.inputs, *graphs.weights],
            "_output_names": list(graphs.outputs),
            "_weights_to_train": list(graphs.weights),
            "_shapes": {t.name: tuple(t.dims) for t in self.onnx_model.graph.initializer},
            "_bw_fetches_names": list(graphs.gradients.values()),
            "_onx_out": list(graphs.gradients.values()),
            "_trained_onnx": graphs.full,
            "_optimized_pre_grad_model": graphs.evaluation,
            "__module__": __name__,
            "__doc__": OrtGradientForwardBackwardFunction.__doc__,
        }
        self.cls_type_ = type(str(self.class_name), (OrtGradientForwardBackwardFunction,), attributes)
        if logger is not None:
            shown = {"input_names": self.input_names, "output_names": self.output_names}
            for name, value in {**shown, "weights_to_train": self.weights_to_train}.items():
                logger.info("[OrtGradientForwardBackward] %s=%r", name, value)

    def new_instance(self) -> OrtGradientForwardBackwardFunction:
        """Return a new function without saved state."""
        return self.cls_type_()

    def get_initializer(self, name: str, exc: bool = True) -> np.ndarray | None:
        """Return a copy of an initializer; for an unknown name None, or with `exc` a ModelError."""
        tensors = {t.name: t for t in self.onnx_model.graph.initializer}
        if exc:
            check_known(name, tensors, "A model must have the initializer.", ModelError)
        return np.array(onnx.numpy_helper.to_array(tensors[name])) if name in tensors else None

    def save_onnx_graph(self, folder: Any, prefix: str | None = None, suffix: str | None = None) -> dict[str, Any]:
        """Write the graphs into a folder, or return them as bytes, as the function's method does."""
        return self.cls_type_.save_onnx_graph(folder, prefix, suffix)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "cls_type_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._build()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


class OrtGradientForwardBackwardFunction:
    """The result of `OrtGradientForwardBackward.new_instance`: forward and backward of one model.

    Attributes of the class, under the originals' names: `_input_names`, `_output_names`, `_weights_to_train`,
    `_grad_input_names` and `_onx_inp` (inputs, then weights), `_bw_fetches_names` and `_onx_out` (their gradients),
    `_trained_onnx` (inputs, weights and output gradients → outputs and gradients), `_optimized_pre_grad_model` (inputs
    and weights → outputs), `_sess_eval` and `_sess` (the onnxruntime.InferenceSession of that graph, and of the forward
    pass in training), `_logger`, `_debug`, `_run_options`.
    """

    _graphs: Graphs
    _forward: Session
    _evaluation: Session
    _backward: Session
    _shapes: dict[str, tuple[int, ...]]  # of the initializers
    _logger: logging.Logger | None

    def __init__(self) -> None:
        self.states_: list[tuple[list[np.ndarray], dict[str, np.ndarray]]] = []  # (outputs, for backward)
        self.saved_tensors_: list[Any] | None = None

    def forward(self, inputs: Sequence[Any], training: bool = False, forward_outputs_cache: Any = None) -> list[Tensor]:
        """Return the outputs; with `training`, save the values for backward and apply dropout.

        Args:
            inputs: the inputs and the trained weights: arrays, OrtValues or CPU tensors of the model's types.
            training: whether a backward follows.
            forward_outputs_cache: ignored; outputs are always new arrays.

        Raises:
            TrainError: the number of inputs is wrong.
            ModelError: a shape or type differs from the model's.
        """
        graphs = self._graphs
        names = [*graphs.inputs, *graphs.weights]
        self._check_count("forward", inputs, names)
        arrays: dict[str, np.ndarray] = dict(zip(names, self.input_to_ort(inputs), strict=True))
        for name in graphs.weights:
            arrays[name] = _ranked(arrays[name], self._shapes[name])
        if not training:
            return [_copied(y) for y in self._evaluation.run(_read(arrays, graphs.evaluation), graphs.outputs)]
        arrays = {name: _copied(array) for name, array in arrays.items()}  # backward reads the values of now
        results = self._forward.run(_read(arrays, graphs.forward), [*graphs.outputs, *graphs.saved])
        outputs, saved = results[: len(graphs.outputs)], results[len(graphs.outputs) :]
        self.states_.append((outputs, {**arrays, **dict(zip(graphs.saved, saved, strict=True))}))
        self.save_for_backward(inputs)
        return [_copied(y) for y in outputs]

    def backward(
        self, grad_outputs: Sequence[Any], backward_outputs_cache: Any = None, *, retain: bool = False
    ) -> list[Tensor | None]:
        """Return the gradients of inputs and weights, for the last forward that has had no backward yet.

        Args:
            grad_outputs: one gradient per output, of its shape; None counts as zeros.
            backward_outputs_cache: ignored, as for forward.
            retain: keep the saved values for another backward, as PyTorch's `retain_graph` needs.

        Raises:
            TrainError: no forward with `training=True` is pending, or a gradient's size differs from its output's.
        """
        graphs = self._graphs
        self._check_count("backward", grad_outputs, graphs.outputs)
        if not self.states_:
            rule = "Each backward() needs a forward() with training=True before it."
            raise TrainError(rule, got="no pending forward", fix="Call forward(inputs, training=True) first.")
        outputs, saved = self.states_[-1]
        values = dict(saved)
        for name, gradient, y in zip(graphs.outputs, grad_outputs, outputs, strict=True):
            if name in graphs.cotangents:
                values[graphs.cotangents[name]] = _cotangent(name, gradient, y)
        if not retain:
            self.states_.pop()
        names = list(graphs.gradients.values())
        results = dict(zip(names, self._backward.run(_read(values, graphs.backward), names), strict=True))
        gradient_names = [graphs.gradients.get(name) for name in (*graphs.inputs, *graphs.weights)]
        return [_copied(results[name]) if name is not None else None for name in gradient_names]

    def save_for_backward(self, inputs: Sequence[Any]) -> None:
        """Keep references to these tensors."""
        self.saved_tensors_ = list(inputs)

    @property
    def saved_tensors(self) -> list[Any]:
        """The tensors saved last, the inputs of the last forward with `training`; TrainError: none were."""
        if self.saved_tensors_ is None:
            rule = "saved_tensors needs a forward() with training=True before it."
            raise TrainError(rule, got="none", fix="Call forward(inputs, training=True).")
        return self.saved_tensors_

    @staticmethod
    def input_to_ort(tensors: Sequence[Any], devices: Any = None, debug: bool = False) -> list[Tensor]:
        """Return arrays, OrtValues or CPU tensors as contiguous arrays that a session takes; no copy where possible.

        Raises:
            TrainError: a tensor is None.
        """
        for place, tensor in enumerate(tensors):
            if tensor is None:
                raise TrainError("Every input must have a value.", got=f"None at place {place}", fix="Give an array.")
        return [np.ascontiguousarray(array_of(tensor)).view(Tensor) for tensor in tensors]

    @staticmethod
    def device_name(device: Any) -> str:
        """Return `Cpu`; ConfigError: another device."""
        return cpu(device).capitalize()

    @classmethod
    def save_onnx_graph(cls, folder: Any, prefix: str | None = None, suffix: str | None = None) -> dict[str, Any]:
        """Write the graphs into a folder (`bytes` instead of a folder returns them as bytes).

        Returns:
            File or bytes by graph: `_trained_onnx` (forward and gradients), `_forward`, `_backward` and
            `_optimized_pre_grad_model` (inference, with the weights as inputs).

        Raises:
            ConfigError: the folder does not exist.
        """
        graphs = {
            "_trained_onnx": cls._graphs.full,
            "_forward": cls._graphs.forward,
            "_backward": cls._graphs.backward,
            "_optimized_pre_grad_model": cls._graphs.evaluation,
        }
        return saved(graphs, folder, cls.__name__, prefix, suffix)

    def _check_count(self, method: str, tensors: Sequence[Any], names: Sequence[str]) -> None:
        if self._logger is not None:
            self._logger.debug("[%s.%s] %d tensors", type(self).__name__, method, len(tensors))
        if len(tensors) != len(names):
            rule, fix = f"{method} needs one tensor per name.", f"Give {', '.join(names)}."
            raise TrainError(rule, got=f"{len(tensors)} tensors", fix=fix)


def _read(values: dict[str, Any], model: onnx.ModelProto) -> dict[str, Any]:
    return {i.name: values[i.name] for i in model.graph.input}


def _ranked(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a weight in its own shape if it differs from it only in leading dimensions of 1."""
    longer, shorter = sorted((array.shape, shape), key=len, reverse=True)
    ones = len(longer) - len(shorter)
    return array.reshape(shape) if longer == (1,) * ones + shorter else array


def _copied(array: np.ndarray) -> Tensor:
    """Return a copy, so that changes by the caller do not reach the saved values."""
    return np.array(array).view(Tensor)


def _cotangent(name: str, gradient: Any, y: np.ndarray) -> np.ndarray:
    if gradient is None:
        return np.zeros_like(y)
    array = np.asarray(array_of(gradient), y.dtype)
    if array.size != y.size:
        rule, fix = "The gradient of an output must have the output's shape.", "Give one number per element."
        raise TrainError(rule, got=f"{array.shape} for {name!r} of shape {y.shape}", fix=fix)
    return np.ascontiguousarray(array.reshape(y.shape))


def _checked_names(kind: str, names: Sequence[str], choices: Sequence[str]) -> list[str]:
    for place, name in enumerate(names):
        if name not in choices or name in names[:place]:
            rule, fix = f"Every {kind} must be one of the model's, and be named once.", nearest(name, set(choices))
            raise ConfigError(rule, got=repr(name), fix=fix)
    return list(names)


def _cpu_only(providers: Any) -> Any:
    names = getattr(providers, "type", providers)  # a torch.device has a type
    for name in [names] if isinstance(names, str) or names is None else names:
        cpu(provider_to_device(name) if isinstance(name, str) and name.endswith("Provider") else name or "cpu")
    return providers
