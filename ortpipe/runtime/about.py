"""What the installed runtime is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Runtime:
    """An installation of onnxruntime.

    Attributes:
        version: its own.
        builds_gradients: it is the training build, which the `ort` engine needs.
        providers: those it was made for, by their long names.
    """

    version: str
    builds_gradients: bool
    providers: tuple[str, ...]


def about() -> Runtime:
    """Return what is installed.

    Raises:
        ModelError: more than one distribution is.
        ImportError: none is, or it is damaged.
    """
    from ortpipe.runtime.one import check_one_runtime

    check_one_runtime()  # again: the library was looked at when it was imported
    from ortpipe.runtime.library import ort

    builds = hasattr(ort.capi._pybind_state, "OrtModuleGraphBuilder")
    return Runtime(ort.__version__, builds, tuple(ort.get_available_providers()))
