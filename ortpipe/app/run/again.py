"""The command of a run, to be pasted into a shell."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ortpipe.app.redact import redacted

if TYPE_CHECKING:
    from hydra.conf import HydraConf


def typed() -> str:
    """Return the command that this process was started with, without secrets."""
    return shlex.join(["ortpipe", *map(redacted, sys.argv[1:])])


def command_of(hydra: HydraConf) -> str:
    """Return the command of a run; of a sweep's job, the one that does the same alone."""
    if hydra.mode is None or hydra.mode.name != "MULTIRUN":
        return typed()
    folders = [source.path for source in hydra.runtime.config_sources if source.provider == "command-line"]
    options = [word for folder in folders for word in ("--config-dir", unquote(folder).removeprefix("file://"))]
    return shlex.join(["ortpipe", *options, *map(redacted, hydra.overrides.task)])


def again(command: str, checkpoint: Path | None = None) -> str:
    """Return the command that does what is left of a run; `checkpoint` is the run folder that holds one.

    >>> again("ortpipe seed=1 resume=outputs/one", Path("outputs/two"))
    'ortpipe seed=1 resume=outputs/two'
    >>> again("ortpipe seed=1 resume=outputs/one")
    'ortpipe seed=1 resume=outputs/one'
    """
    if checkpoint is None:
        return command
    words = [word for word in shlex.split(command) if not word.startswith("resume=")]
    return shlex.join([*words, f"resume={checkpoint}"])
