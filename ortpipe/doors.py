"""Names that are imported on first use: a package's public names (its door), and functions of optional features."""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def door(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package whose door is under `if TYPE_CHECKING`.

    Type checkers and editors follow these imports. Python executes each on the first use of its name, so that
    unused names cost nothing.
    """
    homes = _homes(package)
    names = sorted(name for name in homes if not name.startswith("_"))

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes[name]
        return getattr(__import__(module, fromlist=[original]), original)  # a function, or a module of a package

    return get, lambda: names, names


def later(module: str) -> None:
    """Define the functions that a module imports under `if TYPE_CHECKING`; the first call imports each.

    Type checkers and import-linter see plain imports. A file uses it for features that a plain model does not need.
    """
    for local, (home, name) in _homes(module).items():
        setattr(sys.modules[module], local, _Late(home, name))


def optional(module: str, name: str) -> Any:
    """Return a name of a module that only makes things faster; None if there is no such module."""
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return None


class _Late:
    """A function or class of a module that is imported when it is called."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _target(self) -> Any:
        return getattr(importlib.import_module(self._module), self._name)

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self._target()(*values, **named)

    def __or__(self, other: Any) -> Any:
        """Return the type of an optional setting when its annotation is evaluated."""
        return self._target() | other


def _homes(module: str) -> dict[str, tuple[str, str]]:
    """Return the module and the name there of each name that a module imports under `if TYPE_CHECKING`."""
    text = Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8")
    head = ast.parse(text.partition("\nelse:\n")[0])  # up to the call of `door` or `later`, in the block's `else`
    imports = [node for block in head.body if isinstance(block, ast.If) for node in block.body]
    return {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in imports
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
