"""What a stage's result depends on, and the key that stands for it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortpipe.pipeline.plan import Step

FORMAT = 1  # of what the store keeps

Parts = Mapping[str, Any]


def parts_of(step: Step, given: str | None, context: Mapping[str, Any]) -> Parts:
    """Return everything that a stage's result depends on, as JSON values.

    Args:
        step: the stage and its config.
        given: the digest of its input artifact.
        context: what stages read, by keyword; of it those that this one reads, by their digests where they have one.
    """
    stage = step.stage
    return {
        "format": FORMAT,
        "stage": stage.name,
        "version": stage.version,
        "input": given,
        stage.name: identity(step.config),
        **{name: _told(context[name]) for name in stage.reads},
        "packages": versions(stage.packages),
        "machine": platform.machine(),
    }


def key_of(parts: Parts) -> str:
    """Return the sha256 (hex) of what a result depends on.

    >>> key_of({"stage": "train", "version": 1})[:8] == key_of({"version": 1, "stage": "train"})[:8]
    True
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=True)
    return hashlib.sha256(text.encode()).hexdigest()


def identity(config: Any) -> Any:
    """Return what of a config can change a result, as JSON values.

    That is every field but those whose metadata say `identity: False`, a member of a catalogue by its name there, and
    for a config with a method `files` the content of what that returns.
    """
    if isinstance(config, Mapping):
        return {str(key): identity(value) for key, value in config.items()}
    if isinstance(config, tuple | list):
        return [identity(value) for value in config]
    if not dataclasses.is_dataclass(config):
        return config
    told: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.metadata.get("identity", True):
            told[field.name] = identity(value)
        if "catalogue" in field.metadata:
            names = [name for name, member in field.metadata["catalogue"].items() if member is type(value)]
            told[field.name] = {"name": names[0] if names else type(value).__qualname__, **told[field.name]}
    if hasattr(config, "files"):
        told["files"] = [_content(file) for file in config.files()]
    return told


def _content(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _told(value: Any) -> Any:
    return value.digest() if hasattr(value, "digest") else identity(value)


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
