"""Change single keys of a recorded config by key=value pairs."""

from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from ortpipe.errors import ConfigError


def change(values: dict[str, Any], pairs: Sequence[str], command: str) -> None:
    """Set keys of a config; errors name the command."""
    for pair in OverridesParser.create().parse_overrides(list(pairs)):
        *parents, last = pair.key_or_group.split(".")
        node: Any = values
        for name in parents:
            node = node.setdefault(name, {}) if isinstance(node, dict) else None
        value = None if pair.is_delete() or pair.is_sweep_override() else pair.value()
        chooses = isinstance(node, dict) and isinstance(node.get(last), dict) and not isinstance(value, dict)
        if not isinstance(node, dict) or chooses or pair.is_delete() or pair.is_sweep_override() or "/" in last:
            rule, key = f"{command} changes single keys of the recorded config.", pair.key_or_group.replace("/", ".")
            choice = f"'{key}={{name: {pair.value()}}}'" if isinstance(pair.value(), str) else "train.epochs=5"
            raise ConfigError(rule, got=pair.input_line, fix=f"Write key=value, such as {choice}.")
        node[last] = value
