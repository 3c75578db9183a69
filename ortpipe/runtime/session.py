"""Running a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from ortpipe.errors import ModelError
from ortpipe.graph.serial import LARGE, on_disk
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.one import check_one_runtime

check_one_runtime()
import onnxruntime as ort  # noqa: E402 - only once it is known to be one

ort.set_default_logger_severity(4)  # what fails is raised with its message; the rest is about its own optimizations


class Session:
    """A model loaded into ONNX Runtime, on the CPU, with deterministic kernels.

    Args:
        model: the model; above 2 GB it goes through a temporary file.
        runtime: threads.

    Raises:
        ModelError: the runtime refuses the model.
    """

    def __init__(self, model: onnx.ModelProto, runtime: RuntimeConfig | None = None) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = (runtime or RuntimeConfig()).threads
        options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        options.log_severity_level = 4
        try:
            if model.ByteSize() > LARGE:
                with on_disk(model) as path:
                    self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            else:
                content = model.SerializeToString()
                self._session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ModelError(
                "ONNX Runtime must load the model.",
                got=str(error).strip().splitlines()[0],
                fix="Use operators and types that onnxruntime has kernels for on the CPU.",
            ) from error

    @property
    def outputs(self) -> tuple[str, ...]:
        """The output names, in order."""
        return tuple(o.name for o in self._session.get_outputs())

    def run(self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None) -> list[np.ndarray]:
        """Return the outputs by name (all of them without `outputs`).

        Raises:
            ModelError: an input is missing or has another shape or type.
        """
        try:
            return list(self._session.run(list(outputs) if outputs is not None else None, dict(feeds)))
        except Exception as error:
            raise ModelError(
                "ONNX Runtime must run the model on these inputs.",
                got=str(error).strip().splitlines()[0],
                fix="Check the inputs' names, shapes and types against the model's.",
            ) from error


def ort_value(array: np.ndarray) -> Any:
    """Return an array as onnxruntime.OrtValue, which reads the array's own memory."""
    return ort.OrtValue.ortvalue_from_numpy(array)
