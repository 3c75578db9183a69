"""Defer onnx-ir's import of sympy (0.4 s), which is needed only for arithmetic on symbolic dimensions."""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

LAZY = ("sympy", "onnx_ir._symbolic_shapes")  # in the order of onnx-ir's imports; loading the second uses the first


class SympyFinder:
    """Makes onnx-ir's import of sympy lazy; it affects no other imports, and removes itself afterwards."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a lazy spec for the two modules; see importlib."""
        if name not in LAZY or "onnx_ir" not in sys.modules:
            return None
        if name == LAZY[-1]:
            sys.meta_path.remove(cls)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def defer_sympy() -> None:
    """Install the finder for the coming import of onnx-ir."""
    if "onnx_ir" not in sys.modules:
        sys.meta_path.insert(0, SympyFinder)
