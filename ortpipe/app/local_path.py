"""Paths of this machine, which settings and arguments of the command line give."""

import re
from pathlib import Path
from typing import Annotated

from ortpipe.errors import ConfigError
from ortpipe.settings import Fix, Must, checked


def is_local(path: str) -> bool:
    """Return whether a text is a path of this machine; it is not if it begins with a scheme of two or more letters.

    >>> [is_local(path) for path in ("runs/s3", "C:/runs", "s3://bucket/runs", "file:///runs")]
    [True, True, False, False]
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", path) is None


LocalPath = Annotated[
    str, Must("a path on this machine, not a URI", is_local), Fix("Write a path. recorder.artifacts may be a URI.")
]


CachePlace = Annotated[
    str,
    Must(
        "a path on this machine, or a URL such as s3://bucket/prefix",
        lambda place: is_local(place) or re.match(r"[A-Za-z][A-Za-z0-9+.-]+://[^/:]|file:///|memory://", place),
    ),
    Fix("Write a path, or SCHEME://BUCKET/PREFIX."),
]


def cache_folder(cache: str, outputs: str) -> Path:
    """Return the store's folder on this machine, which for a URL is below the folder of results."""
    return Path(cache) if is_local(checked(cache, CachePlace, "paths.cache")) else Path(outputs) / "cache"


def local(path: str, key: str) -> Path:
    """Return a path that a setting or an argument gives; reject a URI, whose scheme would name a new local folder."""
    return Path(checked(path, LocalPath, key))


def output_file(name: str, option: str, ending: str) -> Path:
    """Return the path of a file to write, whose name must have this ending."""
    if (path := local(name, option)).suffix != ending:
        rule = f"The file of {option} must have a name that ends in {ending}."
        raise ConfigError(rule, got=repr(name), fix=f"Write {option} {path.stem or 'new'}{ending}.")
    return path


def reject_existing(*outputs: Path, force: bool, fix: str = "Name another, or add --force.") -> None:
    """Reject files and folders to write that exist, unless `force` replaces them."""
    if existing := [str(output) for output in outputs if output.exists() and not force]:
        raise ConfigError("The output must not exist yet.", got=", ".join(existing), fix=fix)
