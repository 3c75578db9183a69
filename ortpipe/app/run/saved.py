"""The config and the other files of a run's folder, read back: nothing in them is resolved or followed."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from ortpipe.app.run.record import checked
from ortpipe.errors import ConfigError

DEEPEST = 100  # groups in a config


@dataclass(frozen=True)
class Groups:
    """What a recorded config has where it has it."""

    recorder: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, Any] = field(default_factory=dict)
    convert: dict[str, Any] = field(default_factory=dict)


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config in a run's folder, as plain data: nothing in it is resolved.

    Raises:
        ConfigError: it is missing or damaged, or a link.
    """
    file, fix = folder / "config.yaml", "Choose another run."
    try:
        if file.is_symlink():
            raise ValueError("it is a link")
        text = file.read_text(encoding="utf-8")
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("it has aliases, which no run writes: few of them stand for billions of values")
            if depth > DEEPEST:
                raise ValueError(f"its groups are more than {DEEPEST} deep")
        values = yaml.safe_load(text)
        checked(values, Groups)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError("A run's config.yaml is as it was written.", got=f"{file}: {error}", fix=fix) from error
    return cast("dict[str, Any]", values)


def read_json(file: Path, kind: Any) -> Any:
    """Return what a file of a run's folder holds, which has at least the fields of a type.

    Raises:
        ConfigError: it is missing or damaged.
    """
    try:
        return checked(json.loads(file.read_text(encoding="utf-8")), kind)
    except (OSError, ValueError, RecursionError) as error:
        fix = "Choose another."
        raise ConfigError("A run's folder is as it was written.", got=f"{file}: {error}", fix=fix) from error
