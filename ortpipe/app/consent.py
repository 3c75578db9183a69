"""Use a recorded config again: the code and secrets that require the user's consent, and changes of single keys."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from ortpipe.app.redact import ENVIRONMENT, MASK, know
from ortpipe.errors import ConfigError
from ortpipe.own import is_path

VARIABLE = re.compile(r"\$\{oc\.env:\s*(\w+)\s*\}")
DECODED = re.compile(r"\$\{oc\.decode:\s*\$\{oc\.env:\s*(\w+)\s*\}\s*\}")
UNUSED = ("recorder", "paths", "hydra", "name")  # not used by repro
CODE_KEYS = ("function", "module", "_target_")
# Teachers that run no code of others.
TEACHERS = ("sklearn.ensemble.HistGradientBoosting", "ortpipe.data.teacher:Stack", "ortpipe.runtime:Onnx")
MEMBER_KEYS = ("name", "monitor", "objective")  # their values are catalogue members or import paths
MEMBER_LISTS = ("evaluate.metrics.", "penalty.terms.")  # with members in a list or as keys


def mapped(node: Any, change: Callable[[str, Any], Any], key: str = "") -> Any:
    """Return a tree of values with each value replaced by `change(dotted key, value)`."""
    under = f"{key}." if key else ""
    if isinstance(node, Mapping):
        return {name: mapped(value, change, f"{under}{name}") for name, value in node.items()}
    if isinstance(node, list):
        return [mapped(value, change, f"{under}{number}") for number, value in enumerate(node)]
    return change(key, node)


def _settings(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the pairs of dotted key and value that repro uses; a key may occur twice, since names may contain dots."""
    settings: list[tuple[str, Any]] = []
    mapped({name: value for name, value in config.items() if name not in UNUSED}, lambda *pair: settings.append(pair))
    return settings


def check_consent(config: Mapping[str, Any], folder: object, *, trust: bool) -> None:
    """Raise unless the user trusts the code that repeating a run would execute; see `executes`."""
    if (asks := executes(config, folder)) and not trust:
        fix = "Look at it in the record; if you trust it, add --trust."
        rule = "The code that a record names is executed only with your consent."
        raise ConfigError(rule, got="\n       ".join(asks), fix=fix)


def executes(config: Mapping[str, Any], folder: object) -> list[str]:
    """Return the code that repeating a run would execute and the variables that it would read, one line each.

    >>> executes({"data": {"source": {"name": "function", "function": "os:system"}}}, "/there")
    ['data.source.function=os:system, whose module is looked for in /there first']
    >>> executes({"add_loss": {"loss": {"name": "theirs:Loss"}}, "train": {"optimizer": {"name": "sgd"}}}, "/there")
    ['add_loss.loss.name=theirs:Loss, whose module is looked for in /there first']
    >>> executes({"evaluate": {"metrics": ["box/theirs:iou"]}}, "/there")
    ['evaluate.metrics.0=box/theirs:iou, whose module is looked for in /there first']
    >>> executes({"data": {"teacher": {"estimator": "theirs:make"}}}, "/there")
    ['data.teacher.estimator=theirs:make, whose module is looked for in /there first']
    >>> executes({"convert": {"source": {"path": "m.pkl", "trust": True}}, "seed": 0}, None)
    ['convert.source.trust=True: opening m.pkl executes its content']
    """
    demands, settings = [], _settings(config)
    for key, value in settings:
        name = key.rpartition(".")[2]
        member = str(value).rpartition("/")[2]  # without the head of a metric
        is_code = (name in MEMBER_KEYS or key.startswith(MEMBER_LISTS)) and (is_path(member) or is_path(name))
        is_code |= key == "data.teacher.estimator" and value not in (None, *TEACHERS)
        if is_code or (name in CODE_KEYS and value is not None):
            demands.append(f"{key}={value}, whose module is looked for in {folder or 'the working folder'} first")
        elif name == "trust" and value:
            path = dict(settings).get(f"{key.removesuffix('trust')}path")
            demands.append(f"{key}={value}: opening {path or 'the file'} executes its content")
        elif isinstance(value, str) and ENVIRONMENT.search(value):
            names = ", ".join(ENVIRONMENT.findall(value))
            demands.append(f"{key} is read from the environment: {names}")
    return demands


def completed(config: dict[str, Any], secret_values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded config with its missing secrets, from `secret_values` or from the environment.

    Raises:
        ConfigError: a value is passed for a key that is no masked secret, or a secret is missing.
    """

    def is_secret(value: Any) -> bool:
        return isinstance(value, str) and (MASK in value or "${oc." in value)

    secrets = {key for key, value in _settings(config) if is_secret(value)}
    if extra := sorted(set(secret_values) - secrets):
        fix = "Pass only the values that the run's config.yaml masks as ***."
        raise ConfigError("A run is repeated with its own config.", got=", ".join(extra), fix=fix)

    def complete(key: str, value: Any) -> Any:
        if key not in secrets or not is_secret(value):
            return value
        if key in secret_values:
            know(secret_values[key])
            return secret_values[key]
        if MASK in value:
            rule, fix = "A record holds no secrets, so they must be passed again.", f"Add {key}=… to the command."
            raise ConfigError(rule, got=f"{key}={value}", fix=fix)
        if (match := DECODED.fullmatch(value)) is not None:
            _variable(match[1], key)
            return OmegaConf.create({"value": value}).value  # decoded as in the run
        return VARIABLE.sub(lambda match: _variable(match[1], key), value)

    return mapped(config, complete)


def _variable(name: str, key: str) -> str:
    value = os.environ.get(name)
    if value is None:
        rule, fix = "A record holds no secrets, so they are read from the environment.", f"Set {name}, or add {key}=…"
        raise ConfigError(rule, got=f"{key} from {name}, which is not set", fix=fix)
    know(value)
    return value


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
