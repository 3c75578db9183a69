"""The commands, each a module of `commands/` that is imported on demand, and their completion in bash."""

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ortpipe.app.pulse import PULSE

COMMANDS = tuple(sorted(file.stem.replace("_", "-") for file in Path(__file__).parent.glob("commands/[a-z]*.py")))
WITHOUT_PATHS = {"cache", "doctor", "plan", "retrain", "rollback", "run-stage", "schedule", "validate"}  # as arguments
FIRST_ARGUMENTS = {
    "cache": ("gc", "ls", "rm", "verify"),
    "run-stage": ("add_loss", "convert", "derive", "evaluate", "penalty", "train"),
}


def is_word(argument: str) -> bool:
    """Return whether an argument could be a command, perhaps misspelt: Hydra's arguments all contain a sign.

    >>> [is_word(word) for word in ("trian", "run-stge", "train.epochs=5", "~experiment", "-m", "")]
    [True, True, False, False, False, False]
    """
    return argument.replace("-", "_").isidentifier() and not argument.startswith("-")


def command(name: str) -> Callable[[Sequence[str]], None]:
    """Return the function that runs a command with its arguments."""
    return PULSE.during(name)(importlib.import_module(f"ortpipe.app.commands.{name.replace('-', '_')}").run)


def is_query(arguments: Sequence[str]) -> bool:
    """Return whether bash requests the completions of the word under the cursor."""
    return list(arguments) == ["-sc", "query=bash"] and "COMP_LINE" in os.environ


def answer() -> bool:
    """Print the commands, or a command's first arguments; return whether Hydra should print groups and keys, too.

    Hydra then completes the arguments of a run: the line without the command and its options.
    """
    line = os.environ["COMP_LINE"][: int(os.environ.get("COMP_POINT") or 10**9)]
    program, *before = line.split()
    word = "" if line[-1].isspace() else before.pop() if before else ""
    if not before or before[0] not in COMMANDS:
        if not before:
            print(" ".join(name for name in COMMANDS if name.startswith(word)))
        return True
    command, *arguments = before
    if command in FIRST_ARGUMENTS and not arguments:
        print(" ".join(name for name in FIRST_ARGUMENTS[command] if name.startswith(word)))
        return False
    pairs = [argument for argument in arguments if "=" in argument or argument.startswith("~")]
    os.environ["COMP_LINE"] = " ".join([program, *pairs, word])
    return command in WITHOUT_PATHS and not word.startswith("-")
