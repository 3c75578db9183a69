"""onnx-ir without sympy, which it imports (0.4 s) for arithmetic on symbolic dimensions that hardly anybody needs."""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

LAZY = ("sympy", "onnx_ir._symbolic_shapes")  # as onnx-ir imports them; the second uses the first as it is loaded


class SympyFinder:
    """Lets onnx-ir's import of sympy load it when it is first used; nobody else's, and no longer than it is needed."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module is loaded, of these two; see importlib."""
        if name not in LAZY or "onnx_ir" not in sys.modules:
            return None
        if name == LAZY[-1]:
            sys.meta_path.remove(cls)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def defer_sympy() -> None:
    """Look after the import of onnx-ir that is to come."""
    if "onnx_ir" not in sys.modules:
        sys.meta_path.insert(0, SympyFinder)
