"""The one place that imports onnxruntime, and what it is."""

import sys
import threading
from dataclasses import dataclass
from typing import Any

from ortpipe.runtime.distributions import check_one_runtime

TRAINING = "onnxruntime.training"


class _Hidden:
    """A finder that hides a module from the thread that made it."""

    def __init__(self, name: str) -> None:
        self._name, self._thread = name, threading.get_ident()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == self._name and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _imported() -> Any:
    """Import onnxruntime without `onnxruntime.training`.

    The training build tries to import that package, and with it torch where that is installed: seconds and hundreds of
    megabytes, to find out its own version. Both can be imported before and afterwards.
    """
    check_one_runtime()
    hidden = _Hidden(TRAINING)
    sys.meta_path.insert(0, hidden)
    try:
        import onnxruntime
    finally:
        sys.meta_path.remove(hidden)
    return onnxruntime


ort = _imported()
ort.set_default_logger_severity(4)  # what fails is raised with its message; the rest is about its own optimizations


@dataclass(frozen=True)
class Runtime:
    """An installation of onnxruntime."""

    version: str
    builds_gradients: bool  # it is the training build, which the `ort` engine needs
    providers: tuple[str, ...]  # those it was made for, by their long names


def about() -> Runtime:
    """Return what is installed; refuse more than one distribution."""
    check_one_runtime()  # again: others may have been installed since the import
    builds_gradients = hasattr(ort.capi._pybind_state, "OrtModuleGraphBuilder")
    return Runtime(ort.__version__, builds_gradients, tuple(ort.get_available_providers()))
