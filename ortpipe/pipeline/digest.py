"""What a stage's result depends on, and the key that stands for it."""

import dataclasses
import hashlib
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from typing import Any

from ortpipe import own
from ortpipe.errors import ConfigError
from ortpipe.hashing import digest_of
from ortpipe.pipeline.plan import ReadsFiles, Step
from ortpipe.settings import Config, catalogue_of, fields_of

FORMAT = 2  # of what the store keeps

Parts = Mapping[str, Any]


def parts_of(step: Step, given: str | None, context: Mapping[str, Any]) -> Parts:
    """Return everything that a stage's result depends on, as JSON values: of the context, what the stage reads.

    `given` is the digest of its input artifact; a context value that has a digest stands there by it.
    """
    stage, read = step.stage, {name: context[name] for name in step.stage.reads}
    return {
        "format": FORMAT,
        "stage": stage.name,
        "version": stage.version,
        "input": given,
        stage.name: identity(step.config),
        **{name: value.digest() if hasattr(value, "digest") else identity(value) for name, value in read.items()},
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

    That is every field but those whose metadata say `identity: False`, a member of a catalogue by its name there, the
    code of one that is the user's own, and for a config with a method `files` the content of what that returns.

    >>> identity({"alpha": 0.5, "class_weight": {0: 1, "0": 2}})
    {'alpha': 0.5, 'class_weight': {'0 (int)': 1, '0': 2}}
    """
    if isinstance(config, str) and (part := own.loaded(config)) is not None:
        return {"name": config, "code": own.code(part)}
    if config is None or isinstance(config, str | int | float):
        return config
    if isinstance(config, Mapping):
        names = {key: key if isinstance(key, str) else f"{key!r} ({type(key).__name__})" for key in config}
        codes = {f"code of {key}": own.code(own.loaded(key)) for key in names.values() if own.loaded(key) is not None}
        return {names[key]: identity(value) for key, value in config.items()} | codes
    if isinstance(config, tuple | list):
        return [identity(value) for value in config]
    if dataclasses.is_dataclass(config):
        return _identity_of_fields(config)
    if hasattr(config, "dtype") and hasattr(config, "tolist"):  # NumPy's scalars and arrays
        return {str(config.dtype): identity(config.tolist())}
    raise ConfigError(
        "Values of a config are text, numbers, true, false, none, or lists and mappings of them.",
        got=f"{config!r:.200} ({type(config).__name__})",
        fix="Give a plain value, such as a number as the seed.",
    )


def _identity_of_fields(config: Any) -> dict[str, Any]:
    told: dict[str, Any] = {}
    is_config = isinstance(config, Config)  # a source of the user's own is any dataclass
    hints: Mapping[str, Any] = fields_of(config.__class__) if is_config else {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.metadata.get("identity", True):
            told[field.name] = identity(value)
        catalogue = catalogue_of(hints[field.name][1]) if hints else None
        if catalogue is not None:
            member: Any = type(value)
            told[field.name] = {"name": catalogue.name_of(member), **told[field.name]}
            if own.is_own(member):
                told[field.name]["code"] = own.code(member)
    if isinstance(config, ReadsFiles):
        told["files"] = []
        for path in config.files():
            with path.open("rb") as file:
                told["files"].append(hashlib.file_digest(file, "sha256").hexdigest())
    return told


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {package: _version(package) for package in packages}
    return {package: version for package, version in found.items() if version is not None}


@cache  # each stage of a run asks for some, and a process keeps what it has imported
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
