"""onnx-ir without sympy: it imports that (0.4 s) for arithmetic on symbolic dimensions, which no command asks for."""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

LAZY = ("sympy", "onnx_ir._symbolic_shapes")  # the second uses the first as it is loaded


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in LAZY else None
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def import_onnx_ir() -> None:
    """Import onnx-ir for a process of the command line; sympy is loaded if it is used after all."""
    sys.meta_path.insert(0, _Finder)
    try:
        with contextlib.suppress(ImportError):  # the doctor says what is wrong with it
            importlib.import_module("onnx_ir")
    finally:
        sys.meta_path.remove(_Finder)
