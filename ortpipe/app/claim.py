"""A folder belongs to the one run or sweep that writes it, by a lock that dies with its process."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from ortpipe.errors import ConfigError
from ortpipe.files import TEMPORARY
from ortpipe.pipeline.locks import lock

LOCK = ".run.lock"

_held = contextlib.ExitStack()  # Hydra calls back before it writes, and returns to us when all is done


@contextlib.contextmanager
def claimed(folder: Path, key: str, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder while the block runs; what a run that was killed left half-written there is removed.

    `key` of the config says which folder it is; with `wait`, a process that is at work there is waited for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        fix = "Set paths.outputs to a folder of yours, or change its rights."
        raise ConfigError("The output folder must be writable.", got=folder, fix=fix)

    def notify(message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    def busy(holder: str) -> None:
        if not wait:
            rule, got = "A folder is written by one run at a time.", f"{holder} is at work in {folder}"
            raise ConfigError(rule, got=got, fix=f"Wait for its end, or set another {key}.")
        notify(f"waiting for {holder}, which is at work in {folder}")

    def missing(why: str) -> None:
        notify(f"warning: no lock on {folder}: {why}; a second run into it would mix with this one")

    with lock(folder / LOCK, busy=busy, missing=missing):
        for path in folder.iterdir():
            if TEMPORARY.fullmatch(path.name):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield


def hold(folder: Path, key: str) -> None:
    """Hold a folder until `releasing` ends."""
    _held.enter_context(claimed(folder, key))


@contextlib.contextmanager
def releasing() -> Iterator[None]:
    """Let go, at the end, of what was held inside."""
    with _held:
        yield
