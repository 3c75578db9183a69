"""The parts that a stage's result depends on, and the key computed from them."""

import dataclasses
import hashlib
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from typing import Any

from ortpipe import own, own_code
from ortpipe.errors import ConfigError
from ortpipe.hashing import digest_of
from ortpipe.pipeline.plan import NeedsPackages, ReadsFiles, Step
from ortpipe.settings import Config, catalogue_of, fields_of

FORMAT = 2  # of the store's contents

Parts = Mapping[str, Any]


def parts_of(step: Step, input_digest: str | None, context: Mapping[str, Any]) -> Parts:
    """Return everything that a stage's result depends on, as JSON values: its config, input, part of the context …

    `input_digest` is the input artifact's; a context value with a method `digest` is represented by that.
    """
    stage, read = step.stage, {name: context[name] for name in step.stage.reads}
    return {
        "format": FORMAT,
        "stage": stage.name,
        "version": stage.version,
        "input": input_digest,
        stage.name: identity(step.config),
        **{name: value.digest() if hasattr(value, "digest") else identity(value) for name, value in read.items()},
        "packages": versions(stage.packages),
        "machine": platform.machine(),
    }


def key_of(parts: Parts) -> str:
    """Return the sha256 (hex) of a result's parts.

    The order of a mapping matters: where several globs match a parameter, a stage may use the last.

    >>> key_of({"factors": {"*": 0.1, "w": 1}}) == key_of({"factors": {"w": 1, "*": 0.1}})
    False
    """
    return digest_of("key", parts)


def identity(config: Any) -> Any:
    """Return the part of a config that can change a result, as JSON values.

    These are all fields except those whose metadata has `identity: False`. A catalogue's member is represented by its
    name, a user's own one also by its code, a config with a method `files` by the digests of its files, and one with a
    method `packages` by their versions.

    >>> identity({"alpha": 0.5, "class_weight": {0: 1, "0": 2}})
    {'alpha': 0.5, 'class_weight': {'0 (int)': 1, '0': 2}}
    """
    if isinstance(config, str) and (part := own_code.loaded(config)) is not None:
        return {"name": config, "code": own_code.code(part)}
    if config is None or isinstance(config, str | int | float):
        return config
    if isinstance(config, Mapping):
        names = {key: key if isinstance(key, str) else f"{key!r} ({type(key).__name__})" for key in config}
        codes = {
            f"code of {key}": own_code.code(own_code.loaded(key))
            for key in names.values()
            if own_code.loaded(key) is not None
        }
        return {names[key]: identity(value) for key, value in config.items()} | codes
    if isinstance(config, tuple | list):
        return [identity(value) for value in config]
    if dataclasses.is_dataclass(config):
        return _identity_of_fields(config)
    if hasattr(config, "dtype") and hasattr(config, "tolist"):  # NumPy's scalars and arrays
        return {str(config.dtype): identity(config.tolist())}
    raise ConfigError(
        "Values of a config must be strings, numbers, true, false, none, or lists and mappings of them.",
        got=f"{config!r:.200} ({type(config).__name__})",
        fix="Give a plain value, such as a number as the seed.",
    )


def _identity_of_fields(config: Any) -> dict[str, Any]:
    identities: dict[str, Any] = {}
    is_config = isinstance(config, Config)  # a user's own source may be any dataclass
    hints: Mapping[str, Any] = fields_of(config.__class__) if is_config else {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.metadata.get("identity", True):
            identities[field.name] = identity(value)
        catalogue = catalogue_of(hints[field.name][1]) if hints else None
        if catalogue is not None:
            member: Any = type(value)
            identities[field.name] = {"name": catalogue.name_of(member), **identities[field.name]}
            if own.is_own(member):
                identities[field.name]["code"] = own_code.code(member)
    if isinstance(config, NeedsPackages) and (names := config.packages()):
        identities["packages"] = versions(names)
    if isinstance(config, ReadsFiles):
        identities["files"] = []
        for path in config.files():
            with path.open("rb") as file:
                identities["files"].append(hashlib.file_digest(file, "sha256").hexdigest())
    return identities


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    by_package = {package: _version(package) for package in packages}
    return {package: version for package, version in by_package.items() if version is not None}


@cache  # every stage needs them, and versions do not change within a process
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
