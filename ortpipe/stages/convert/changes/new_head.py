"""The settings of a new head: the layers that replace a network's end."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ortpipe.errors import ConfigError, nearest
from ortpipe.settings import Config, Seed

POOLS = {"mean": "GlobalAveragePool", "max": "GlobalMaxPool"}
PLAIN = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}
SETTINGS = {"linear": "a width, as in {linear: 10}", "dropout": "a share, as in {dropout: 0.1}", "pool": "mean or max"}
LAYERS = (*SETTINGS, *PLAIN, "gelu", "flatten", "softmax")


@dataclass(frozen=True)
class NewHead(Config):
    """The layers that replace a network's end.

    Attributes:
        layers: `linear: width`, `dropout: share`, `pool: mean` or `max` (over all positions), and `flatten`, `relu`,
            `tanh`, `gelu`, `sigmoid`, `softmax`. A last sigmoid or softmax makes a classifier; without them the head
            predicts values, or raw scores if convert.source.task names such a task.
        cut: name or glob of the value that the first layer reads, [N, F], or [N, C, …] for pool and flatten.
        seed: of the new weights; by default convert's.
    """

    layers: tuple[str | Mapping[str, Any], ...]
    cut: str | None = None
    seed: Seed | None = None

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError("A head has layers.", key="layers", got="none", fix="Write [{linear: 10}, softmax].")

    @functools.cached_property
    def parts(self) -> tuple[tuple[str, Any], ...]:
        """The layers, each by its name and its setting (None where it has none)."""
        return tuple(map(_parse_layer, self.layers))

    def __str__(self) -> str:
        return ", ".join(name if setting is None else f"{name} {setting}" for name, setting in self.parts)


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
