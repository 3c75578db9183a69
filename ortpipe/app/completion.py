"""Tab completion in bash: commands, what a command takes first, and behind it the keys that Hydra completes."""

import os
from collections.abc import Sequence

from ortpipe.app.command_list import COMMANDS

PATHS = ("diff", "init", "repro", "show", "sync")  # they take files and folders, which the shell itself completes
FIRST = {
    "cache": ("gc", "ls", "rm", "verify"),
    "run-stage": ("add_loss", "convert", "derive", "evaluate", "penalty", "train"),
}


def is_query(arguments: Sequence[str]) -> bool:
    """Return whether bash asks what the word under the cursor can become."""
    return list(arguments) == ["-sc", "query=bash"] and "COMP_LINE" in os.environ


def answer() -> bool:
    """Print the commands, or what one takes first; return whether Hydra is to print its groups and keys, too.

    What it reads of the line is then that of a run: without the command, and without the command's options.
    """
    line = os.environ["COMP_LINE"][: int(os.environ.get("COMP_POINT") or 10**9)]
    program, *before = line.split()
    word = "" if line[-1].isspace() else before.pop() if before else ""
    if not before or before[0] not in COMMANDS:
        if not before:
            print(" ".join(name for name in COMMANDS if name.startswith(word)))
        return True
    command, *rest = before
    if command in FIRST and not rest:
        print(" ".join(name for name in FIRST[command] if name.startswith(word)))
        return False
    pairs = [other for other in rest if "=" in other or other.startswith("~")]
    os.environ["COMP_LINE"] = " ".join([program, *pairs, word])
    return command not in PATHS and not word.startswith("-")
