"""A lock on the output folder of a run or sweep, released when its process ends."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ortpipe.errors import ConfigError
from ortpipe.files import TEMPORARY, delete
from ortpipe.pipeline.locks import lock

LOCK = ".run.lock"

_claims = contextlib.ExitStack()  # held from Hydra's callback, before it writes, until the program's end


@contextlib.contextmanager
def claimed(folder: Path, key: str, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder while the block runs, and remove the temporary files of killed runs.

    `key` is the config key that sets the folder. With `wait`, wait for the process that holds the lock, else raise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        fix = "Set paths.outputs to a folder that you may write to, or change its permissions."
        raise ConfigError("The output folder must be writable.", got=folder, fix=fix)

    def notify(message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    def busy(holder: str) -> None:
        if not wait:
            rule, actual = "Only one run at a time may write a folder.", f"{holder} is writing {folder}"
            raise ConfigError(rule, got=actual, fix=f"Wait for it to end, or set another {key}.")
        notify(f"waiting for {holder}, which is writing {folder}")

    def missing(why: str) -> None:
        notify(f"warning: no lock on {folder}: {why}; do not start a second run in this folder")

    with lock(folder / LOCK, busy=busy, missing=missing):
        for path in folder.iterdir():
            if TEMPORARY.fullmatch(path.name):
                delete(path)
        yield


def output_folder(paths: Mapping[str, Any], folder: str, key: str) -> Path:
    """Return the absolute path of the folder that `key` sets for a run or sweep; reject a URI, also among the paths."""
    from ortpipe.app.local_path import cache_folder, local  # with annotated_types, which --help does not need

    local(paths["outputs"], "paths.outputs")
    local(folder, key)
    if paths["cache"] is not None:
        cache_folder(paths["cache"], paths["outputs"])
    return Path(folder).absolute()


def hold(folder: Path, key: str) -> None:
    """Lock a folder until the block of `releasing` ends."""
    _claims.enter_context(claimed(folder, key))


@contextlib.contextmanager
def releasing() -> Iterator[None]:
    """Release the locks of `hold` when the block ends."""
    with _claims:
        yield
