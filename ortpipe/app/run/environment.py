"""The environment of a run: versions, platform, commit, and the command in shell syntax."""

import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from hydra.conf import HydraConf

from ortpipe.app.redact import redacted
from ortpipe.pipeline.digest import versions
from ortpipe.quoting import quoted

PACKAGES = (
    *("ortpipe", "onnxruntime-training", "onnxruntime", "onnx", "onnx-ir", "numpy", "scikit-learn", "scipy"),
    *("hydra-core", "omegaconf", "mlflow"),
)
REGISTER = "recorder.register="


def environment(seed: int, command: str) -> dict[str, str]:
    """Return versions, platform, seed, command, working folder, and the commit (`-dirty` with uncommitted changes)."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        **(dict.fromkeys(PACKAGES, "not installed") | versions(PACKAGES)),
        "git_commit": _commit(),
        "seed": str(seed),
        "folder": str(Path.cwd()),
        "command": command,
    }


def _commit() -> str:
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        process = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return process.stdout.strip() or "not a git checkout"


def typed_command() -> str:
    """Return the command line of this process, with secrets masked."""
    return command_line(sys.argv[1:])


def command_line(words: Iterable[str]) -> str:
    """Return a command in shell syntax, with secrets masked."""
    return shlex.join(["ortpipe", *map(redacted, words)])


def command_of(hydra: HydraConf, *, registers: bool = False) -> str:
    """Return the command of a run, or the command that repeats a sweep's job on its own.

    A sweep that `registers` a model registers only the best job's, so a repeated job must not register its model.
    """
    if hydra.mode is None or hydra.mode.name != "MULTIRUN":
        return typed_command()
    folders = [source.path for source in hydra.runtime.config_sources if source.provider == "command-line"]
    options = [word for folder in folders for word in ("--config-dir", unquote(folder).removeprefix("file://"))]
    task = [word for word in hydra.overrides.task if not (registers and word.lstrip("+").startswith(REGISTER))]
    return command_line([*options, *task, *([f"{REGISTER}null"] if registers else [])])


def continuing(command: str, checkpoint: Path | None = None) -> str:
    """Return the command that continues a run; `checkpoint` is the run folder that holds a checkpoint.

    >>> continuing("ortpipe seed=1 resume=outputs/one", Path("outputs/two"))
    'ortpipe seed=1 resume=outputs/two'
    >>> continuing("ortpipe seed=1 resume=outputs/one")
    'ortpipe seed=1 resume=outputs/one'
    """
    if checkpoint is None:
        return command
    words = [word for word in shlex.split(command) if not word.startswith("resume=")]
    plain = re.fullmatch(r"[\w/.-]+", str(checkpoint), re.ASCII)  # others may have a meaning in Hydra's grammar
    return shlex.join([*words, f"resume={checkpoint if plain else quoted(str(checkpoint))}"])
