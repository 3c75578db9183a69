"""The only import of onnxruntime, of which only one distribution may be installed."""

import sys
from contextlib import suppress
from importlib import metadata
from typing import Any

from ortpipe.errors import ModelError

TRAINING = "onnxruntime.training"
DISTRIBUTIONS = (
    "onnxruntime",
    "onnxruntime-training",
    "onnxruntime-training-cpu",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
)


def check_one_runtime() -> None:
    """Raise if more than one distribution of onnxruntime is installed."""
    installed = []
    for name in DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            metadata.version(name)
            installed.append(name)
    if len(installed) > 1:
        raise ModelError(
            "Only one distribution of onnxruntime may be installed: they overwrite each other's files.",
            got=" and ".join(installed),
            fix=f"pip uninstall -y {' '.join(installed)}, then pip install {installed[-1]}",
        )


def _imported() -> Any:
    """Import onnxruntime without `onnxruntime.training`.

    On import, the training build tries to load that package, and torch with it if installed: seconds and hundreds of
    megabytes, only to determine its version. Both can still be imported before and afterwards.
    """
    check_one_runtime()
    hides = TRAINING not in sys.modules
    if hides:
        sys.modules[TRAINING] = None  # type: ignore[assignment] # Python then raises ModuleNotFoundError
    try:
        import onnxruntime
    finally:
        if hides:
            del sys.modules[TRAINING]
    return onnxruntime


ort = _imported()
bindings = ort.capi.onnxruntime_pybind11_state  # its classes in C++
ort.set_default_logger_severity(4)  # errors are raised with their message; the rest concerns ort's own optimizations
