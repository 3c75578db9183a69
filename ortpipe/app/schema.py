"""Turn a composed config into typed, checked values; report all errors at once, each with its key and the fix."""

import contextlib
import copy
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import yaml

from ortpipe import (
    AddLossConfig,
    ConvertConfig,
    DeriveConfig,
    EvaluateConfig,
    OrtpipeError,
    PenaltyConfig,
    RuntimeConfig,
    TrainConfig,
)
from ortpipe.app.drift import CheckedDataConfig
from ortpipe.app.gates import check_gates
from ortpipe.app.local_path import CachePlace, LocalPath, is_local
from ortpipe.app.tracking import RECORDERS, Recorder, with_files, with_start
from ortpipe.app.words import SETTINGS
from ortpipe.data.load import load
from ortpipe.errors import ConfigError, nearest, under
from ortpipe.metrics import UNWEIGHTED
from ortpipe.metrics.named import OBJECTIVE, check_rows
from ortpipe.parallel import check_engine
from ortpipe.settings import Catalogue, Config, Text, article, catalogue_of, checked, fields_of


@dataclass(frozen=True)
class PathsConfig(Config):
    """The folders of results.

    Attributes:
        outputs: the folder of runs, and of MLflow's database and artifacts.
        cache: the folder of the cache that runs share, or its URL, such as s3://bucket/prefix; null: no cache.
    """

    outputs: LocalPath
    cache: CachePlace | None

    def __post_init__(self) -> None:
        if self.cache is not None and not is_local(self.cache):
            from ortpipe.remote import check_url

            check_url(self.cache, "cache")


@dataclass(frozen=True)
class RunConfig(Config):
    """The config of a run, in flow order; the fields are the top-level keys of conf/config.yaml.

    Attributes:
        data: the rows, and how they are split.
        convert: the model, and how it becomes a graph with trainable weights.
        add_loss: the loss that training minimizes.
        penalty: the terms that are added to the loss for large weights.
        derive: how the gradients are computed, and of which parameters.
        train: how the parameters are updated.
        evaluate: the metrics on the test rows.
        paths: the folders of results.
        runtime: the device and the threads on which graphs run.
        recorder: the recorder in addition to the run folder: MLflow, the console, or none.
        seed: the random seed of all parts without their own seed.
        name: the name of the run in its record.
        start: the trained model whose graph and weights replace those of convert.source: models:/NAME@ALIAS, the id of
            an MLflow run, or a run's folder.
        resume: the folder of a stopped run: training continues from its last checkpoint.
        objective: the value by which a sweep compares its jobs: the loss (of the validation rows if there are any,
            else of training), or a metric of evaluate on the validation rows.
        figures: true: drawn when a run ends, of a sweep only those of its best job; false: drawn by `ortpipe report
            FOLDER`.
    """

    data: CheckedDataConfig
    convert: ConvertConfig
    add_loss: AddLossConfig
    penalty: PenaltyConfig
    derive: DeriveConfig
    train: TrainConfig
    evaluate: EvaluateConfig
    paths: PathsConfig
    runtime: RuntimeConfig = RuntimeConfig()
    recorder: Annotated[Recorder, RECORDERS] = RECORDERS.default("none")
    seed: int = 0
    name: Text = "run"
    start: Text | None = None
    resume: Text | None = None
    objective: Annotated[str, OBJECTIVE] = "loss"
    figures: bool = True

    def __post_init__(self) -> None:
        split = self.data.split
        validated = split.column is not None or bool(split.validation)
        check_gates(self.evaluate, self.recorder, validated=validated)
        check_measured(self.objective, split.column, split.validation, self.evaluate.metrics)
        if self.train.states is not None and self.paths.cache is None:
            rule, fix = "{key} are kept in the cache.", "Set paths.cache, or {key}=null."
            raise ConfigError(rule, key="train.states", got="paths.cache=null", fix=fix)
        if self.train.parallel is not None:
            check_engine(self.train.parallel, self.runtime.engine)
        penalized = any(strength for strengths in self.penalty.terms.values() for strength in strengths.values())
        by_step = self.train.parallel is not None and self.train.parallel.every == "step"
        if by_step and penalized and self.add_loss.reduction == "sum":
            rule = "With {key}=step, workers cannot split a summed loss with a penalty."
            fix = "Set add_loss.reduction=mean, or train.parallel.every=epoch."
            raise ConfigError(rule, key="train.parallel.every", got="add_loss.reduction=sum and penalty.terms", fix=fix)


def check_measured(objective: str, column: Any, validation: Any, metrics: Sequence[str] | None) -> None:
    """Reject an objective that no run of a split with these validation rows and with these metrics measures."""
    with under("objective"):
        check_rows(objective, validated=column is not None or bool(validation))
    if objective != "loss" and metrics is not None and objective.removesuffix(UNWEIGHTED) not in metrics:
        fix = f"Add it to evaluate.metrics, or choose from {', '.join(['loss', *metrics])}."
        rule = "{key} must be a metric that evaluate computes."
        raise ConfigError(rule, key="objective", got=objective, fix=fix)


def build(config: Mapping[str, Any], where: Callable[[str], str | None] | None = None) -> RunConfig:
    """Return the typed config, or raise one error that lists all; `where` returns the place where a key was set.

    If there is one, a table is read, too, for its errors.
    """
    values, problems = check(config)
    if problems:
        check_data(config, problems)
        raise all_at_once(problems, where)
    return RunConfig(**values)


def build_key(key: str, node: Any) -> Any:
    """Return the typed value of one top-level key; the others may be incomplete, as in a sweep's own config."""
    entry, hint = fields_of(RunConfig)[key]
    problems: list[OrtpipeError] = []
    value = _value(hint, node, key, entry.default, problems)
    if problems:
        raise ConfigError("\n".join(map(str, problems)))
    return value


def check(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[OrtpipeError]]:
    """Return the typed values of the valid top-level keys, and the errors of the others."""
    problems: list[OrtpipeError] = []
    nodes = {}
    with collected(problems):
        config = with_start(config)
    for key, node in config.items():
        with collected(problems, key):
            nodes[key] = with_files(key, node, config.get("recorder"))
    values = _values(RunConfig, {key: nodes.get(key, node) for key, node in config.items()}, problems)
    if not problems:
        values |= with_outputs(values)
        with collected(problems):
            RunConfig(**values)
    return values, problems


def with_outputs(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of convert if the loss needs other outputs of a network by config than one for each label."""
    settings = getattr(values["add_loss"].loss, "network", {}) if values.keys() >= {"convert", "add_loss"} else {}
    if not settings or not hasattr(values["convert"].source, "outputs"):
        return {}
    source = values["convert"].source
    source = dataclasses.replace(source, task=source.task or "regression", **settings)
    return {"convert": dataclasses.replace(values["convert"], source=source)}


def check_data(config: Mapping[str, Any], problems: list[OrtpipeError]) -> None:
    """Read the table of a config without its wrong settings; append its errors to `problems`."""
    node = copy.deepcopy(config.get("data"))
    if isinstance(node, dict):
        node.pop("teacher", None)  # fitting it would take long
    for key in filter(None, [problem.key for problem in problems]):
        first, *path, last = key.split(".") if "." in key else ("", "")
        parent = functools.reduce(lambda at, name: at.get(name, {}) if isinstance(at, dict) else {}, path, node)
        if first == "data" and isinstance(parent, dict):
            parent.pop(last, None)
    with contextlib.suppress(ConfigError):  # without its wrong settings, the source may not be complete
        data = build_key("data", node)
        if hasattr(data.source, "labels_of"):  # a table
            with collected(problems, "data"):
                load(data)


def all_at_once(errors: Iterable[OrtpipeError | str], where: Callable[[str], str | None] | None = None) -> ConfigError:
    """Return one error that lists all, each with the place where its key was set if it is known."""
    lines = []
    for error in errors:
        key = None if isinstance(error, str) else error.said_in(SETTINGS).key
        place = where(key) if where is not None and key is not None else None
        lines.append(str(error) if place is None else f"{error}\n  set: {place}")
    lines = list(dict.fromkeys(lines))
    count = "1 error" if len(lines) == 1 else f"{len(lines)} errors"
    return ConfigError("\n".join([f"The config has {count}.", *lines]))


@contextlib.contextmanager
def collected(problems: list[OrtpipeError], *path: str) -> Iterator[None]:
    """Append an OrtpipeError of the block, about settings under a path, to the list instead of raising it."""
    try:
        with under(*path):
            yield
    except OrtpipeError as error:
        problems += getattr(error, "errors", [error])  # of DataErrors


def _values(
    cls: type, node: Mapping[str, Any], problems: list[OrtpipeError], member: str | None = None
) -> dict[str, Any]:
    """Return the values of the valid fields of a config dataclass, such as a catalogue's member."""
    values, fields = {}, fields_of(cls)
    for key in node:
        if key not in fields:
            owner = "the config" if member is None else f"{member}, whatever sets it"
            remove = " Remove it with ~{key}, or the experiment that sets it with ~experiment." if member else ""
            fix = nearest(str(key), fields) + remove
            problems.append(ConfigError(f"{{key}} is not a key of {owner}.", key=str(key), fix=fix))
    for name, (entry, hint) in fields.items():
        if name in node and node[name] != "???":
            problem_count = len(problems)
            value = _value(hint, node[name], name, entry.default, problems)
            if len(problems) == problem_count:
                values[name] = value
        elif entry.default is entry.default_factory:  # there is no default
            fix = "Add {key}=… to the command or to the experiment."
            problems.append(ConfigError("{key} must be set.", key=name, fix=fix))
    return values


def _value(hint: Any, node: Any, name: str, default: Any, problems: list[OrtpipeError]) -> Any:
    """Return a field's value, or None after appending its errors to `problems`."""
    groups = typing.get_args(hint)[1:] if typing.get_origin(hint) is Mapping else ()
    if any(map(dataclasses.is_dataclass, groups)) and isinstance(node, Mapping):
        return {key: _value(groups[0], value, f"{name}.{key}", None, problems) for key, value in node.items()}
    hint = group_of(hint) if node is not None else hint
    catalogue, member = catalogue_of(hint), None
    inner: list[OrtpipeError] = []
    with collected(problems):
        if catalogue is None and not dataclasses.is_dataclass(hint):
            return _plain(node, hint, name, default)
        with under(name):
            if catalogue is not None:
                member = _name_in(catalogue, node)
                hint = _settings_of(catalogue, member)
                node = {key: value for key, value in node.items() if key != "name"}
            if not isinstance(node, Mapping):
                fix = f"Set some of its keys: {', '.join(f'{{key}}.{field}' for field in fields_of(hint))}."
                raise ConfigError("{key} must be a group of keys.", got=repr(node), fix=fix)
            values = _values(hint, node, inner, member)
            if not inner:
                return hint(**values)
    problems += [problem.under(name) for problem in inner]
    return None


def group_of(hint: Any) -> Any:
    """Return the dataclass of a `group | None` annotation; return other annotations unchanged.

    >>> group_of(PathsConfig | None).__name__, group_of(str | None)
    ('PathsConfig', str | None)
    """
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else ()
    return next((part for part in parts if dataclasses.is_dataclass(part)), hint)


def _name_in(catalogue: Catalogue[Any], node: Any) -> str:
    name = node.get("name") if isinstance(node, Mapping) else None
    if isinstance(name, str) and name in catalogue:
        return name
    if isinstance(node, str):
        fix = f"Write {{group}}={node}." if node in catalogue else f"Write {{group}}=NAME. {nearest(node, catalogue)}"
        raise ConfigError("{key} is a group of keys: choose its file with a slash.", got=repr(node), fix=fix)
    rule = "{key} must be set." if name is None else f"{{key}} must be the name of {article(catalogue.noun)}."
    fix = nearest(str(name or ""), catalogue)
    raise ConfigError(rule, key="name", got=repr(node if name is None else name), fix=fix)


def _settings_of(catalogue: Catalogue[Any], name: str) -> Any:
    """Return the dataclass of a member's settings; a member of the user's own must be a dataclass, too."""
    member = catalogue[name]
    if dataclasses.is_dataclass(member):
        return member
    rule = f"{{key}} must be the name of {article(catalogue.noun)}, which is a dataclass."
    raise ConfigError(rule, key="name", got=name, fix="Write @dataclass(frozen=True) above the class.")


def _plain(node: Any, hint: Any, name: str, default: Any) -> Any:
    try:
        return checked(node, hint, name, default)
    except ConfigError as error:
        if (parsed := _read(node)) == node:
            raise
        try:
            return checked(parsed, hint, name, default)
        except ConfigError as text_error:
            raise (text_error if isinstance(node, str) else error) from None


def _read(node: Any) -> Any:
    """Return a value with its strings parsed as numbers, null or lists: environment variables hold only strings.

    >>> _read(["1e-3", "010", "1:30", "true", "[1, null]"])
    [0.001, 10, '1:30', True, [1, None]]
    """
    if isinstance(node, list | tuple):
        return [_read(part) for part in node]
    if isinstance(node, Mapping):
        return {key: _read(part) for key, part in node.items()}
    if not isinstance(node, str):
        return node
    if node.startswith(("[", "{")):
        with contextlib.suppress(yaml.YAMLError):
            return _read(yaml.load(node, yaml.BaseLoader))  # which leaves numbers as strings
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(node)
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "null": None}
    return words.get(node.lower(), node)


def keys(cls: Any = RunConfig, prefix: str = "") -> Iterator[str]:
    """Yield every dotted key that a config can have, with any members of its catalogues."""
    for name, (_, hint) in fields_of(cls).items():
        path = f"{prefix}{name}"
        yield path
        if (catalogue := catalogue_of(hint)) is not None:
            yield f"{path}.name"
            for member in catalogue.values():
                yield from keys(member, f"{path}.")
        elif dataclasses.is_dataclass(group := group_of(hint)):
            yield from keys(group, f"{path}.")


def keys_of(group: str, member: Any) -> Iterator[str]:
    """Yield the keys of a group ("" for the top level), if it is a catalogue's with `member` chosen."""
    cls: Any = RunConfig
    for part in group.split(".") if group else ():
        hint = fields_of(cls)[part][1] if part in fields_of(cls) else None
        catalogue = catalogue_of(hint)
        cls = catalogue[member] if catalogue is not None and member in catalogue else group_of(hint)
        if not dataclasses.is_dataclass(cls):
            return
    yield from (f"{group}.{name}".lstrip(".") for name in fields_of(cls))
