"""From a composed config to typed, checked values: every error at once, each with its key and the nearest valid one."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any

from ortpipe.app.recorders import RECORDERS, Recorder
from ortpipe.data.config import DataConfig
from ortpipe.errors import ConfigError, OrtpipeError, nearest
from ortpipe.metrics import OBJECTIVES, UNWEIGHTED, check_known
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.settings import Config, in_words
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.train.config import TrainConfig


@dataclass(frozen=True)
class PathsConfig(Config):
    """Where results go: runs, and MLflow's database and artifacts; and the store that runs share (null: none)."""

    outputs: str
    cache: str | None


@dataclass(frozen=True)
class RunConfig(Config):
    """A whole run, in flow order; the fields are the top-level keys of conf/config.yaml.

    `resume` is the run folder of a run that was stopped: training continues from its last checkpoint.
    `objective` is what a sweep compares its jobs by: the loss (of validation rows where there are any, else of
    training), or a metric of evaluate.
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
    objective: str = "loss"

    def __post_init__(self) -> None:
        check_known(self.objective, "objective", besides=OBJECTIVES)
        metrics = self.evaluate.metrics
        if self.objective != "loss" and metrics is not None and self.objective.removesuffix(UNWEIGHTED) not in metrics:
            fix = f"Add it to evaluate.metrics, or choose from {', '.join(['loss', *metrics])}."
            raise ConfigError("The objective is a metric that evaluate computes.", got=self.objective, fix=fix)


@dataclass(frozen=True)
class Problem:
    """What is wrong with one key."""

    key: str
    text: str


def build(config: Mapping[str, Any], where: Callable[[str], str | None] | None = None) -> RunConfig:
    """Return a config's typed form.

    Args:
        config: nested plain values.
        where: the place at which a key was set, in words, for the messages.

    Raises:
        ConfigError: lists every unknown key, wrong type, missing value and broken rule.
    """
    values, problems = check(config)
    if problems:
        raise all_at_once(located(problem, where) for problem in problems)
    return RunConfig(**values)


def build_key(key: str, node: Any) -> Any:
    """Return one top-level key's typed value, as for a sweep, whose other keys may be complete in its jobs only.

    Raises:
        ConfigError: as for all of them.
    """
    values, problems = check({key: node})
    own = [problem.text for problem in problems if problem.key == key or problem.key.startswith(f"{key}.")]
    if own:
        raise ConfigError("\n".join(own))
    return values[key]


def check(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the typed values of the top-level keys that are right, and everything that is wrong with the others."""
    problems: list[Problem] = []
    return _fields(RunConfig, config, "", problems), problems


def located(problem: Problem, where: Callable[[str], str | None] | None) -> str:
    """Return a problem's text with the place where its key was set, where that is known."""
    place = where(problem.key) if where is not None else None
    return problem.text if place is None else f"{problem.text}\n  set: {place}"


def all_at_once(errors: Iterable[str]) -> ConfigError:
    """Return one error that lists all."""
    lines = list(errors)
    count = "1 error" if len(lines) == 1 else f"{len(lines)} errors"
    return ConfigError("\n".join([f"The config has {count}.", *lines]))


def _fields(
    cls: type, node: Mapping[str, Any], path: str, problems: list[Problem], member: str | None = None
) -> dict[str, Any]:
    """Return the values of those fields of a config dataclass that are right."""
    values = {}
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key in node:
        if key not in fields:
            whose = "the config" if member is None else f"{member}, whatever sets it"
            way_out = nearest(str(key), fields) + (f" Take it away with ~{path}{key}." if member else "")
            problems.append(Problem(f"{path}{key}", f"{path}{key} is not a key of {whose}.\n  fix: {way_out}"))
    for name, entry in fields.items():
        if name not in node or node[name] == "???":
            if entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING:
                text = f"{path}{name} must be set.\n  fix: Add {path}{name}=… to the command or to the experiment."
                problems.append(Problem(f"{path}{name}", text))
            continue
        before = len(problems)
        value = _value(entry, hints[name], node[name], f"{path}{name}", problems)
        if len(problems) == before:
            values[name] = value
    return values


def _build(cls: type, node: Any, path: str, problems: list[Problem], member: str | None = None) -> Any:
    """Return an instance of a config dataclass, or None once `problems` says why not."""
    if not isinstance(node, Mapping):
        problems.append(Problem(path.rstrip("."), f"{path.rstrip('.')} must be a group of keys.\n  got: {node!r}"))
        return None
    before = len(problems)
    values = _fields(cls, node, path, problems, member)
    built = _obeying(cls, node, values, path, problems)
    return built if len(problems) == before else None


def _obeying(cls: type, node: Mapping[str, Any], values: dict[str, Any], path: str, problems: list[Problem]) -> Any:
    """Return the instance once no rule is broken; a key that breaks one is told, and its default stands in for it."""
    fields, told = dataclasses.fields(cls), set[str]()
    optional = {f.name for f in fields if not (f.default is f.default_factory is dataclasses.MISSING)}
    while {f.name for f in fields} - optional <= set(values):
        try:
            return cls(**values)
        except OrtpipeError as error:
            rule, named = str(error).partition("\n")[0], _named(str(error), node)
            wrong = {problem.key for problem in problems}
            if rule in told or any(path + name in wrong for name in set(named) - set(values)):  # of a default
                return None
            told.add(rule)
            key = named[0] if named else ""
            problems.append(Problem(path + key, str(error)))
            if key not in optional:
                return None
            values = {name: value for name, value in values.items() if name != key}
    return None


def _named(message: str, node: Mapping[str, Any]) -> list[str]:
    """Return the keys of a group that a message speaks of, as they come.

    >>> _named("A seed is not negative.", {"test": 0.25, "seed": -1})
    ['seed']
    """
    places = {key: found.start() for key in node if (found := re.search(rf"\b{re.escape(str(key))}\b", message))}
    return sorted(places, key=lambda key: places[key])


def _value(entry: dataclasses.Field[Any], hint: Any, node: Any, path: str, problems: list[Problem]) -> Any:
    if "catalogue" in entry.metadata:
        return _member(entry.metadata["catalogue"], node, path, problems)
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), node, f"{path}.", problems)
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(hint).validate_python(node)
    except ValidationError as error:
        is_union = typing.get_origin(hint) in (typing.Union, UnionType)
        if is_union and len({*typing.get_args(hint)} - {type(None)}) > 1:  # not an error for each of its types
            text = f"{path} is {in_words(hint)}.\n  got: {node!r}"
            problems.append(Problem(path, text))
            return None
        for problem in error.errors():
            where = ".".join(
                [path, *(str(part) for part in problem["loc"] if isinstance(part, int) or part in str(node))]
            )
            text = f"{where}: {problem['msg'].lower().replace('input', 'the value', 1)}.\n  got: {problem['input']!r}"
            if problem["type"] == "tuple_type" and isinstance(problem["input"], str):
                text = text.replace("a valid tuple", "a list") + f"\n  fix: Write a list: [{problem['input']}]."
            problems.append(Problem(where, text))
        return None


def _member(catalogue: Mapping[str, type], node: Any, path: str, problems: list[Problem]) -> Any:
    if not isinstance(node, Mapping) or "name" not in node:
        text = f"{path}.name must be set.\n  got: {node!r}\n  fix: {nearest('', catalogue)}"
        problems.append(Problem(f"{path}.name", text))
        return None
    name = node["name"]
    if name not in catalogue:
        text = f"{path}.name must be in its catalogue.\n  got: {name!r}\n  fix: {nearest(str(name), catalogue)}"
        problems.append(Problem(f"{path}.name", text))
        return None
    rest = {key: value for key, value in node.items() if key != "name"}
    return _build(catalogue[name], rest, f"{path}.", problems, name)


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
