"""From a composed config to typed, checked values: every error at once, each with its key and the nearest valid one."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ortpipe.app.recorders import RECORDERS, Recorder
from ortpipe.data.config import DataConfig
from ortpipe.errors import ConfigError, OrtpipeError, nearest
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.train.config import TrainConfig


@dataclass(frozen=True)
class PathsConfig:
    """Where results go: runs, and MLflow's database and artifacts; and the store that runs share (null: none)."""

    outputs: str
    cache: str | None


@dataclass(frozen=True)
class RunConfig:
    """A whole run, in flow order; the fields are the top-level keys of conf/config.yaml.

    `resume` is the run folder of a run that was stopped: training continues from its last checkpoint.
    """

    data: DataConfig
    convert: ConvertConfig
    add_loss: AddLossConfig
    penalty: PenaltyConfig
    derive: DeriveConfig
    train: TrainConfig
    evaluate: EvaluateConfig
    paths: PathsConfig
    runtime: RuntimeConfig = RuntimeConfig()
    recorder: Recorder = field(default_factory=lambda: RECORDERS["none"](), metadata={"catalogue": RECORDERS})
    seed: int = 0
    name: str = "run"
    resume: str | None = None


def build(config: Mapping[str, Any]) -> RunConfig:
    """Return a config's typed form.

    Raises:
        ConfigError: lists every unknown key, wrong type, missing value and broken rule.
    """
    errors: list[str] = []
    built = _build(RunConfig, config, "", errors)
    if errors:
        count = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
        raise ConfigError("\n".join([f"The config has {count}.", *errors]))
    return typing.cast(RunConfig, built)


def _build(cls: type, node: Any, path: str, errors: list[str], member: str | None = None) -> Any:
    """Return an instance of a config dataclass, or None once `errors` says why not."""
    if not isinstance(node, Mapping):
        errors.append(f"{path or 'config'} must be a group of keys.\n  got: {node!r}")
        return None
    before, values = len(errors), {}
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key in node:
        if key not in fields:
            where = "the config" if member is None else f"{member}, whatever sets it"
            way_out = nearest(str(key), fields) + (f" Take it away with ~{path}{key}." if member else "")
            errors.append(f"{path}{key} is not a key of {where}.\n  fix: {way_out}")
    for name, entry in fields.items():
        if name not in node or node[name] == "???":
            if entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING:
                errors.append(
                    f"{path}{name} must be set.\n  fix: Add {path}{name}=… to the command or to the experiment."
                )
            continue
        values[name] = _value(entry, hints[name], node[name], f"{path}{name}", errors)
    if len(errors) > before:
        return None
    try:
        return cls(**values)
    except OrtpipeError as error:
        errors.append(str(error))
        return None


def _value(entry: dataclasses.Field[Any], hint: Any, node: Any, path: str, errors: list[str]) -> Any:
    if "catalogue" in entry.metadata:
        return _member(entry.metadata["catalogue"], node, path, errors)
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), node, f"{path}.", errors)
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(hint).validate_python(node)
    except ValidationError as error:
        for problem in error.errors():
            where = ".".join(
                [path, *(str(part) for part in problem["loc"] if isinstance(part, int) or part in str(node))]
            )
            errors.append(
                f"{where}: {problem['msg'].lower().replace('input', 'the value', 1)}.\n  got: {problem['input']!r}"
            )
        return None


def _member(catalogue: Mapping[str, type], node: Any, path: str, errors: list[str]) -> Any:
    if not isinstance(node, Mapping) or "name" not in node:
        errors.append(f"{path}.name must be set.\n  got: {node!r}\n  fix: {nearest('', catalogue)}")
        return None
    name = node["name"]
    if name not in catalogue:
        errors.append(f"{path}.name must be in its catalogue.\n  got: {name!r}\n  fix: {nearest(str(name), catalogue)}")
        return None
    rest = {key: value for key, value in node.items() if key != "name"}
    return _build(catalogue[name], rest, f"{path}.", errors, name)


def keys(cls: type = RunConfig, prefix: str = "") -> Iterator[str]:
    """Yield every dotted key that a config can have, whatever members its catalogues choose."""
    hints = typing.get_type_hints(cls)
    for entry in dataclasses.fields(cls):
        path = f"{prefix}{entry.name}"
        yield path
        if "catalogue" in entry.metadata:
            yield f"{path}.name"
            for member in entry.metadata["catalogue"].values():
                yield from keys(member, f"{path}.")
        elif dataclasses.is_dataclass(hints[entry.name]):
            yield from keys(hints[entry.name], f"{path}.")
