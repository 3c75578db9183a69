"""The commands beside a run: `ortpipe <command> …`; each is a module of its name, imported when it is called."""

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


def is_word(argument: str) -> bool:
    """Return whether an argument could be a command, misspelt perhaps: Hydra's all have a sign.

    >>> [is_word(word) for word in ("trian", "run-stge", "train.epochs=5", "~experiment", "-m", "")]
    [True, True, False, False, False, False]
    """
    return argument.replace("-", "_").isidentifier() and not argument.startswith("-")


def command(name: str) -> Callable[[Sequence[str]], None]:
    """Return the function that runs a command with its arguments."""
    module = importlib.import_module(f"ortpipe.app.commands.{name.replace('-', '_')}")
    run: Callable[[Sequence[str]], None] = module.run
    return run
