"""Settings by the last part of their key, such as epochs for train.epochs, and Python values, as arguments of a run."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ortpipe.app.compose import Composition, group_choices, packaged_conf
from ortpipe.errors import ConfigError, nearest
from ortpipe.quoting import word

HIDDEN = ("experiment/", "hydra/")  # groups whose parts are no settings of a run


def texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return Python values as Hydra writes them."""
    return {name: value(setting, name) for name, setting in settings.items()}


def pairs_of(settings: Mapping[str, str], before: Sequence[str], config_dir: str | None) -> list[str]:
    """Return key=value pairs for settings by full keys or by the last part of a key; `before` are the other arguments.

    Raises:
        ConfigError: a name is no setting of this run, or that of several.
    """
    groups = group_choices([packaged_conf(), *([Path(config_dir)] if config_dir is not None else [])])
    short = {group.rpartition("/")[2]: group for group in groups if not group.startswith(HIDDEN)}
    chosen = {name: short[name] for name, text in settings.items() if name in short and _is_choice(text)}
    bare = [name for name in settings if name not in chosen and "." not in name and "/" not in name]

    def keys() -> list[str]:
        """Return the keys of the run with the choices so far."""
        pairs = [f"{group}={settings[name]}" for name, group in chosen.items()]
        return list(_keys(Composition([*before, *pairs], config_dir).values))

    every = keys() if bare else []
    for name in filter(lambda name: _is_choice(settings[name]), bare):  # add_loss.loss=quantile → add_loss=quantile
        key = next(iter(_matching(name, every)), "")
        if key.rpartition(".")[0] in groups and any(other.startswith(f"{key}.") for other in every):
            chosen[name] = key.rpartition(".")[0]
    every = keys() if chosen.keys() & set(bare) else every  # with the settings of these choices
    plain = {name: _key(name, every, settings[name], short) for name in bare if name not in chosen}
    first = [name for name in chosen if name not in bare]
    order = [*first, *(name for name in settings if name not in first)]
    return [f"{chosen.get(name) or plain.get(name, name)}={settings[name]}" for name in order]


def _is_choice(text: str) -> bool:
    return text[:1] not in ("{", "[") and text != "null"


def _keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every key of a config, groups included."""
    for name, node in config.items():
        yield f"{prefix}{name}"
        if isinstance(node, Mapping):
            yield from _keys(node, f"{prefix}{name}.")


def _matching(name: str, keys: Sequence[str]) -> list[str]:
    return sorted((key for key in keys if key.rpartition(".")[2] == name), key=lambda key: key.count("."))


def _key(name: str, keys: Sequence[str], text: str, choices: Iterable[str]) -> str:
    """Return the least nested key whose last part is a name: train.epochs, not train.checkpoint.epochs.

    If there is none, the error also suggests the names of groups, `choices`.
    """
    matching = _matching(name, keys)
    if not matching:
        names = {key.rpartition(".")[2] for key in keys}.union(choices)
        close = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
        rule = "A setting of fit must be the last part of a key of the config, or a whole key."
        raise ConfigError(rule, got=name, fix=nearest(name, close or names))
    equal = [key for key in matching if key.count(".") == matching[0].count(".")]
    if len(equal) > 1:
        rule = "A setting of fit must name one key of the config."
        fix = f'Write the whole key: {equal[0]}={text}; in Python **{{"{equal[0]}": {text}}}.'
        raise ConfigError(rule, got=f"{name}, the last part of {', '.join(equal)}", fix=fix)
    return matching[0]


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
        return "{" + ",".join(f"{_word(key, name)}:{value(part, name)}" for key, part in setting.items()) + "}"
    if isinstance(setting, Sequence | set):
        return "[" + ",".join(value(part, name) for part in setting) + "]"
    rule, fix = "A setting must be a plain value.", "Pass a number, text, a list or a dict of these."
    raise ConfigError(rule, got=f"{name} of type {type(setting).__name__}", fix=fix)


def _word(key: Any, name: str) -> str:
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
