"""What a record asks for before it can be made again: code that it would run, and the secrets that it does not hold."""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import OmegaConf

from ortpipe.app.redact import ENVIRONMENT, MASK, know
from ortpipe.errors import ConfigError
from ortpipe.own import is_path

ASKS = re.compile(r"\$\{oc\.env:\s*(\w+)\s*\}")
DECODED = re.compile(r"\$\{oc\.decode:\s*\$\{oc\.env:\s*(\w+)\s*\}\s*\}")
ELSEWHERE = ("recorder", "paths", "hydra", "name")  # repro does not use them
NAMES = ("function", "module", "_target_")
NAMED = ("name", "monitor", "objective")  # of members of catalogues, which may be import paths
LISTED = ("evaluate.metrics.", "penalty.terms.")  # likewise, in lists and as keys


def mapped(node: Any, change: Callable[[str, Any], Any], key: str = "") -> Any:
    """Return a tree of values with what `change` makes of each dotted key and its value."""
    under = f"{key}." if key else ""
    if isinstance(node, Mapping):
        return {name: mapped(value, change, f"{under}{name}") for name, value in node.items()}
    if isinstance(node, list):
        return [mapped(value, change, f"{under}{number}") for number, value in enumerate(node)]
    return change(key, node)


def _settings(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return each dotted key that repro uses with its value: all of them, for names may hold dots too."""
    found: list[tuple[str, Any]] = []
    mapped({name: value for name, value in config.items() if name not in ELSEWHERE}, lambda *one: found.append(one))
    return found


def executes(config: Mapping[str, Any], folder: object) -> list[str]:
    """Return what making a run again would execute or give away, a line each.

    >>> executes({"data": {"source": {"name": "function", "function": "os:system"}}}, "/there")
    ['data.source.function=os:system, whose module is looked for in /there first']
    >>> executes({"add_loss": {"loss": {"name": "theirs:Loss"}}, "train": {"optimizer": {"name": "sgd"}}}, "/there")
    ['add_loss.loss.name=theirs:Loss, whose module is looked for in /there first']
    >>> executes({"evaluate": {"metrics": ["box/theirs:iou"]}}, "/there")
    ['evaluate.metrics.0=box/theirs:iou, whose module is looked for in /there first']
    >>> executes({"convert": {"source": {"path": "m.pkl", "trust": True}}, "seed": 0}, None)
    ['convert.source.trust=True: opening m.pkl runs what it holds']
    """
    found, settings = [], _settings(config)
    for key, value in settings:
        name = key.rpartition(".")[2]
        of_head = str(value).rpartition("/")[2]  # a metric has its head in front
        part = (name in NAMED or key.startswith(LISTED)) and (is_path(of_head) or is_path(name))
        if part or (name in NAMES and value is not None):
            found.append(f"{key}={value}, whose module is looked for in {folder or 'the working folder'} first")
        elif name == "trust" and value:
            path = dict(settings).get("convert.source.path") if key == "convert.source.trust" else None
            found.append(f"{key}={value}: opening {path or 'the file'} runs what it holds")
        elif isinstance(value, str) and ENVIRONMENT.search(value):
            names = ", ".join(ENVIRONMENT.findall(value))
            found.append(f"{key} is read from the environment: {names}")
    return found


def completed(config: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded config with the secrets that it does not hold: given now, or read from the environment."""

    def is_secret(value: Any) -> bool:
        return isinstance(value, str) and (MASK in value or "${oc." in value)

    secrets = {key for key, value in _settings(config) if is_secret(value)}
    if strange := sorted(set(given) - secrets):
        fix = "Give only what its config.yaml writes as ***."
        raise ConfigError("A run is made again with its own config.", got=", ".join(strange), fix=fix)

    def complete(key: str, value: Any) -> Any:
        if key not in secrets or not is_secret(value):
            return value
        if key in given:
            know(given[key])
            return given[key]
        if MASK in value:
            rule, fix = "A record holds no secrets, so they are given again.", f"Add {key}=… to the command."
            raise ConfigError(rule, got=f"{key}={value}", fix=fix)
        if (whole := DECODED.fullmatch(value)) is not None:
            _variable(whole[1], key)
            return OmegaConf.create({"value": value}).value  # decoded as the run did
        return ASKS.sub(lambda found: _variable(found[1], key), value)

    return mapped(config, complete)


def _variable(name: str, key: str) -> str:
    value = os.environ.get(name)
    if value is None:
        rule, fix = "A record holds no secrets, so the environment is asked again.", f"Set {name}, or give {key}=…"
        raise ConfigError(rule, got=f"{key} from {name}, which is not set", fix=fix)
    know(value)
    return value
