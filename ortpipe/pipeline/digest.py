"""What a stage's result depends on, and the key that stands for it."""

import dataclasses
import hashlib
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ortpipe.errors import ConfigError
from ortpipe.hashing import digest_of
from ortpipe.pipeline.plan import HasDigest, ReadsFiles, Step
from ortpipe.settings import Config, catalogue_of, fields_of

FORMAT = 2  # of what the store keeps

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

    The order of a mapping counts: of the globs that match a parameter, a config may mean the last.

    >>> key_of({"factors": {"*": 0.1, "w": 1}}) == key_of({"factors": {"w": 1, "*": 0.1}})
    False
    """
    return digest_of("key", parts)


def identity(config: Any) -> Any:
    """Return what of a config can change a result, as JSON values.

    That is every field but those whose metadata say `identity: False`, a member of a catalogue by its name there, and
    for a config with a method `files` the content of what that returns.

    Raises:
        ConfigError: a value is of a type whose content cannot be told.

    >>> identity({"alpha": 0.5, "class_weight": {0: 1, "0": 2}})
    {'alpha': 0.5, 'class_weight': {'0 (int)': 1, '0': 2}}
    """
    if isinstance(config, Mapping):
        return {_name(key): identity(value) for key, value in config.items()}
    if isinstance(config, tuple | list):
        return [identity(value) for value in config]
    if not dataclasses.is_dataclass(config):
        return _value(config)
    told: dict[str, Any] = {}
    is_config = isinstance(config, Config)  # a source of the user's own is any dataclass
    hints: Mapping[str, Any] = fields_of(config.__class__) if is_config else {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.metadata.get("identity", True):
            told[field.name] = identity(value)
        catalogue = catalogue_of(hints[field.name][1]) if hints else None
        if catalogue is not None:
            names = [name for name, member in catalogue.items() if member is type(value)]
            told[field.name] = {"name": names[0] if names else type(value).__qualname__, **told[field.name]}
    reader: object = config
    if isinstance(reader, ReadsFiles):
        told["files"] = [_content(file) for file in reader.files()]
    return told


def _content(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _name(key: Any) -> str:
    return key if isinstance(key, str) else f"{key!r} ({type(key).__name__})"


def _value(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if hasattr(value, "dtype") and hasattr(value, "tolist"):  # NumPy's scalars and arrays
        return {str(value.dtype): identity(value.tolist())}
    raise ConfigError(
        "Values of a config are text, numbers, true, false, none, or lists and mappings of them.",
        got=f"{value!r:.200} ({type(value).__name__})",
        fix="Give a plain value, such as a number as the seed.",
    )


def _told(value: Any) -> Any:
    return value.digest() if isinstance(value, HasDigest) else identity(value)


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
