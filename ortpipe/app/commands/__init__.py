"""The commands beside a run: `ortpipe <command> …`; each is a module of its name, imported when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

COMMANDS = (
    "cache",
    "diff",
    "doctor",
    "init",
    "plan",
    "repro",
    "run-stage",
    "schedule",
    "show",
    "sync",
    "validate",
)


def command(name: str) -> Callable[[Sequence[str]], None]:
    """Return the function that runs a command with its arguments."""
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    run: Callable[[Sequence[str]], None] = module.run
    return run
