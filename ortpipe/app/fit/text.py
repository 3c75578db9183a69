"""Python values as Hydra's grammar writes them."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ortpipe.errors import ConfigError
from ortpipe.quoting import word


def value(setting: Any, name: str) -> str:
    """Return a Python value as text; `name` is its name in errors.

    >>> value(["adamw", 1e-3, None, True, "a b"], "x"), value({"no": 1, 2: {}}, "x"), value("runs/new", "x")
    ("[adamw,0.001,null,true,'a b']", '{no:1,2:{}}', 'runs/new')
    """
    setting = setting.tolist() if hasattr(setting, "tolist") else setting  # NumPy's
    if setting is None or isinstance(setting, bool):
        return {None: "null", True: "true", False: "false"}[setting]
    if isinstance(setting, int | float):
        return repr(setting)
    if isinstance(setting, str | os.PathLike):
        return word(os.fspath(setting))
    if isinstance(setting, Mapping):
        return "{" + ",".join(f"{_key(key, name)}:{value(part, name)}" for key, part in setting.items()) + "}"
    if isinstance(setting, Sequence | set):
        return "[" + ",".join(value(part, name) for part in setting) + "]"
    rule, fix = "A setting must be a plain value.", "Pass a number, text, a list or a dict of these."
    raise ConfigError(rule, got=f"{name} of type {type(setting).__name__}", fix=fix)


def _key(key: Any, name: str) -> str:
    if re.fullmatch(r"[\w.-]+", str(key), re.ASCII) is None:  # Hydra has no quotes for keys
        rule = "The keys of a dict in a setting must be plain words."
        raise ConfigError(rule, got=f"{name}: {key!r}", fix="Write this setting in a config file (config_dir).")
    return str(key)


def argument(key: str, setting: Any) -> str:
    """Return the argument of a run that sets a key to a Python value.

    >>> argument("data.source.label", "net price"), argument("train.epochs", 5)
    ("data.source.label='net price'", 'train.epochs=5')
    """
    return f"{key}={value(setting, key)}"
