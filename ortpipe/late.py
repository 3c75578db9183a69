"""Packages that a dependency imports and a run seldom needs are loaded when they are first used.

onnx-ir imports sympy (0.4 s, more than the rest of a small job's imports together) for arithmetic on symbolic
dimensions, which ortpipe does not ask it for.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

LATE = ("sympy", "onnx_ir._symbolic_shapes")  # the second uses the first as it is loaded


class LateFinder:
    """Finds these modules as Python does, and gives them the standard library's lazy loader."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the module's specification, or None for every other module."""
        spec = PathFinder.find_spec(name, path, target) if name in LATE else None
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def import_late() -> None:
    """Let `LATE` be loaded when they are first used; what is loaded already stays as it is."""
    if LateFinder not in sys.meta_path:
        sys.meta_path.insert(0, LateFinder)
