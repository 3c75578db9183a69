"""Flatten nested configs to dotted keys, and compare two of them."""

from collections.abc import Mapping, Sequence
from typing import Any

UNSET = "unset"


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted keys and their values.

    >>> flatten({"train": {"epochs": 5, "optimizer": {"lr": 0.1}}, "seed": 0})
    {'train.epochs': 5, 'train.optimizer.lr': 0.1, 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def differing(
    first: Mapping[str, Any], second: Mapping[str, Any], without: Sequence[str] = ()
) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys whose values differ, with both values.

    >>> differing({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4})
    {'a.c': (2, 3), 'd': ('unset', 4)}
    """
    old, new = flatten(first), flatten(second)
    keys = [key for key in dict.fromkeys((*old, *new)) if key not in without]
    pairs = {key: (old.get(key, UNSET), new.get(key, UNSET)) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
