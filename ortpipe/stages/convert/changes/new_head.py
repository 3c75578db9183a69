"""The layers of a new head: their names and settings."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ortpipe.errors import ConfigError, nearest

POOLS = {"mean": "GlobalAveragePool", "max": "GlobalMaxPool"}
PLAIN = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}
SETTINGS = {"linear": "a width, as in {linear: 10}", "dropout": "a share, as in {dropout: 0.1}", "pool": "mean or max"}
LAYERS = (*SETTINGS, *PLAIN, "gelu", "flatten", "softmax")


def parse_layers(layers: Sequence[str | Mapping[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """Return layers, each by its name and its setting (None where it has none)."""
    return tuple(map(_parse_layer, layers))


def text_of(parts: Iterable[tuple[str, Any]]) -> str:
    """Return layers as text.

    >>> text_of([("linear", 10), ("softmax", None)])
    'linear 10, softmax'
    """
    return ", ".join(name if setting is None else f"{name} {setting}" for name, setting in parts)


def _parse_layer(entry: str | Mapping[str, Any]) -> tuple[str, Any]:
    setting_by_name = {entry: None} if isinstance(entry, str) else entry
    name, setting = next(iter(setting_by_name.items()), ("", None))
    if len(setting_by_name) != 1 or name not in LAYERS:
        raise ConfigError(
            "Each entry of {key} must be a layer, with its setting if it has one: {linear: 10}.",
            key="layers",
            got=repr(entry),
            fix=nearest(str(name), LAYERS),
        )
    is_valid = {
        "linear": type(setting) is int and setting > 0,
        "dropout": isinstance(setting, float) and 0 < setting < 1,
        "pool": setting in POOLS,
    }
    if not is_valid.get(name, setting is None):
        rule = f"A layer {name} has {SETTINGS.get(name, 'no setting')}."
        raise ConfigError(rule, key="layers", got=repr(entry), fix="Correct it in {key}.")
    return name, setting
