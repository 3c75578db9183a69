"""Packages whose public names, their door, are imported on first use."""

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def door(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package whose door is under `if TYPE_CHECKING`.

    Type checkers and editors follow these imports. Python executes each on the first use of its name, so that
    unused names cost nothing.
    """
    tree = ast.parse(Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8"))
    imports = [node for block in tree.body if isinstance(block, ast.If) for node in block.body]
    homes = {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in imports
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names = sorted(name for name in homes if not name.startswith("_"))

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = homes[name]
        return getattr(__import__(module, fromlist=[original]), original)  # a function, or a module of a package

    return get, lambda: names, names
