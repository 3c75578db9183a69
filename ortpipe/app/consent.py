"""What a record asks for before it can be made again: code that it would run, and the secrets that it does not hold."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf

from ortpipe.app.redact import ENVIRONMENT, MASK, know
from ortpipe.errors import ConfigError

ASKS = re.compile(r"\$\{oc\.env:\s*(\w+)\s*\}")
DECODED = re.compile(r"\$\{oc\.decode:\s*\$\{oc\.env:\s*(\w+)\s*\}\s*\}")
ELSEWHERE = ("recorder", "paths", "hydra", "name")  # repro does not use them
NAMES = ("function", "_target_")


def leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each dotted key with its value."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from leaves(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from leaves(value, f"{key}.{number}")
    else:
        yield key, node


def executes(config: Mapping[str, Any], folder: object) -> list[str]:
    """Return what making a run again would execute or give away, a line each.

    >>> executes({"data": {"source": {"name": "function", "function": "os:system"}}}, "/there")
    ['data.source.function=os:system, whose module is looked for in /there first']
    >>> executes({"convert": {"source": {"path": "m.pkl", "trust": True}}, "seed": 0}, None)
    ['convert.source.trust=True: opening m.pkl runs what it holds']
    """
    found = []
    for key, value in leaves(config):
        name = key.rpartition(".")[2]
        if key.partition(".")[0] in ELSEWHERE:
            continue
        if name in NAMES and value is not None:
            found.append(f"{key}={value}, whose module is looked for in {folder or 'the working folder'} first")
        elif name == "trust" and value:
            path = dict(leaves(config)).get("convert.source.path") if key == "convert.source.trust" else None
            found.append(f"{key}={value}: opening {path or 'the file'} runs what it holds")
        elif isinstance(value, str) and ENVIRONMENT.search(value):
            names = ", ".join(ENVIRONMENT.findall(value))
            found.append(f"{key} is read from the environment: {names}")
    return found


def completed(config: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded config with the secrets that it does not hold: given now, or read from the environment."""
    missing = {
        key
        for key, value in leaves(config)
        if isinstance(value, str) and key.partition(".")[0] not in ELSEWHERE and (MASK in value or "${oc." in value)
    }
    if strange := sorted(set(given) - missing):
        fix = "Give only what its config.yaml writes as ***."
        raise ConfigError("A run is made again with its own config.", got=", ".join(strange), fix=fix)
    return {name: _completed(value, name, given) for name, value in config.items()}


def _completed(node: Any, key: str, given: Mapping[str, Any]) -> Any:
    if isinstance(node, dict):
        return {name: _completed(value, f"{key}.{name}", given) for name, value in node.items()}
    if isinstance(node, list):
        return [_completed(value, f"{key}.{number}", given) for number, value in enumerate(node)]
    if key in given:
        know(given[key])
        return given[key]
    if not isinstance(node, str) or key.partition(".")[0] in ELSEWHERE:
        return node
    if MASK in node:
        rule, fix = "A record holds no secrets, so they are given again.", f"Add {key}=… to the command."
        raise ConfigError(rule, got=f"{key}={node}", fix=fix)
    if (whole := DECODED.fullmatch(node)) is not None:
        _variable(whole[1], key)
        return OmegaConf.create({"value": node}).value  # decoded as the run did
    return ASKS.sub(lambda found: _variable(found[1], key), node)


def _variable(name: str, key: str) -> str:
    value = os.environ.get(name)
    if value is None:
        rule, fix = "A record holds no secrets, so the environment is asked again.", f"Set {name}, or give {key}=…"
        raise ConfigError(rule, got=f"{key} from {name}, which is not set", fix=fix)
    know(value)
    return value
