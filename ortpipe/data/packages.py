"""Packages of optional sources, which the extras of ortpipe install."""

import importlib.util

from ortpipe.errors import ConfigError


def require(module: str, reading: str, extra: str, *, package: str | None = None, key: str = "path") -> None:
    """Raise ConfigError if the package that reads a kind of file is not installed."""
    if importlib.util.find_spec(module) is None:
        name = package or module
        rule, fix = f"Reading {reading} needs the package {name}.", f"pip install 'ortpipe[{extra}]'"
        raise ConfigError(rule, key=key, got=f"{name} is not installed", fix=fix)
