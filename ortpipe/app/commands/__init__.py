"""The catalogue of commands beside a run: `ortpipe <command> key=value …`; each is imported when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

COMMANDS = {
    "cache": "ortpipe.app.commands.cache",
    "plan": "ortpipe.app.commands.plan",
    "repro": "ortpipe.app.commands.repro",
    "diff": "ortpipe.app.commands.diff",
    "doctor": "ortpipe.app.commands.doctor",
    "init": "ortpipe.app.commands.init",
    "run-stage": "ortpipe.app.commands.run_stage",
    "schedule": "ortpipe.app.commands.schedule",
    "show": "ortpipe.app.commands.show",
    "validate": "ortpipe.app.commands.validate",
    "sync": "ortpipe.app.commands.sync",
}


def command(name: str) -> Callable[[Sequence[str]], None]:
    """Return the function that runs a command with its arguments."""
    run: Callable[[Sequence[str]], None] = importlib.import_module(COMMANDS[name]).run
    return run
