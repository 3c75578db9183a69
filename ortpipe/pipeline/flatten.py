"""Nested configs as flat keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
