"""Shared by onnxcustom's losses, penalties and learning rates: ONNX functions, and updates of arrays in place."""

import copy
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from ortpipe.compat.devices import array_of, get_ort_device
from ortpipe.compat.forward_backward import Tensor
from ortpipe.compat.models import saved, short
from ortpipe.compat.parameters import Parameters
from ortpipe.errors import DataError
from ortpipe.runtime import Session


class BaseLearningOnnx(Parameters, ABC):
    """Base of losses, penalties and learning rates; its ONNX functions are attributes whose names end in `_onnx_`.

    With a user's own subclass, `OrtGradientForwardBackwardOptimizer` trains batch by batch in Python and calls its
    methods as the original did; with ortpipe's classes the train stage does the same in one graph.
    """

    @abstractmethod
    def build_onnx_function(self, opset: int, device: Any, *args: Any) -> None:
        """Build the ONNX functions; an optimizer's constructor calls this."""

    def get_params(self, deep: bool = False) -> dict[str, Any]:
        """Return the constructor's arguments that are stored under their names."""
        return {
            name: getattr(self, name)
            for name in sorted(inspect.signature(type(self)).parameters)
            if hasattr(self, name)
        }

    def __sklearn_clone__(self) -> Any:
        """Deep-copy an object of a user's own class, which need not store all its arguments under their names."""
        return copy.deepcopy(self) if is_own(self) else super().__sklearn_clone__()

    def save_onnx_graph(self, folder: Any, prefix: str | None = None, suffix: str | None = None) -> dict[str, Any]:
        """Write the ONNX functions into a folder (`bytes` instead of a folder returns them as bytes)."""
        return saved(vars(self), folder, short(type(self).__name__), prefix, suffix)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        without_sessions = {k: v for k, v in state.items() if not k.endswith(("_sess_", "_bind_", "_binds_", "ro_"))}
        return {k: v for k, v in without_sessions.items() if not type(v).__module__.startswith("onnxruntime.")}

    def _call_iobinding(self, sess: Any, bind: Any) -> None:
        sess.run_with_iobinding(bind, None)

    def _bind_input_ortvalue(self, name: str, bind: Any, value: Any, device: Any, cache: bool = False) -> None:
        if isinstance(value, np.ndarray):
            bind.bind_input(name, device, value.dtype, value.shape, value.ctypes.data)
        else:
            bind.bind_ortvalue_input(name, value)

    def _bind_output_ortvalue(self, name: str, bind: Any, value: Any, cache: bool = False) -> None:
        if isinstance(value, np.ndarray):
            bind.bind_output(name, get_ort_device("cpu"), value.dtype, value.shape, value.ctypes.data)
        else:
            bind.bind_ortvalue_output(name, value)

    def clear_binding_inputs(self, name: str, bind: Any, cache: bool = False) -> None:
        """Clear the bound inputs."""
        bind.clear_binding_inputs()


def is_own(part: object) -> bool:
    """Return whether an object's class is a user's own, defined outside of ortpipe."""
    return not type(part).__module__.startswith("ortpipe.")


def put(target: Any, value: Any) -> Any:
    """Write new numbers into an array or an OrtValue, and return it."""
    if isinstance(target, np.ndarray):
        target[...] = value
    else:
        target.update_inplace(np.ascontiguousarray(value))
    return target


def run(model: onnx.ModelProto, values: Mapping[str, Any]) -> list[Tensor]:
    """Run an ONNX function; inputs are cast to its types, and missing row weights are 1.

    Raises:
        DataError: there are row weights, and the function has no third input for them.
    """
    feeds: dict[str, np.ndarray] = {}
    if values["weight"] is not None and len(model.graph.input) < 3:
        raise DataError(
            "Row weights need a loss whose function reads them.",
            got="row weights, and a function with inputs for labels and predictions only",
            fix="Give the optimizer a weight_name, such as 'weight'.",
        )
    for value in model.graph.input:
        tensor = value.type.tensor_type
        name = value.name if value.name in values else "weight"
        supplied = values[name]
        array = np.ones(len(feeds["X1"])) if supplied is None else array_of(supplied)
        if name == "weight":
            array = array.reshape(-1, *[1] * (len(tensor.shape.dim) - 1))
        feeds[value.name] = np.ascontiguousarray(array, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return [np.asarray(result).view(Tensor) for result in _session(model.SerializeToString()).run(feeds)]


@functools.lru_cache(maxsize=32)
def _session(model: bytes) -> Session:
    return Session(onnx.load_from_string(model))
