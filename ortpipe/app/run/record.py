"""The record of a run, a sweep or a sweep's job in its folder; reading it resolves no ${…} and follows no link.

Only this module reads and writes `run.json`.
"""

import contextlib
import getpass
import json
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import yaml
from annotated_types import Ge, Le

from ortpipe.app.redact import hidden, redacted
from ortpipe.app.run.checkpoint import FILE as CHECKPOINT
from ortpipe.app.run.environment import continuing
from ortpipe.app.run.process import HOST, PID, gone, this_process
from ortpipe.bounded import files_below, has_file, parse_json, parse_yaml, read_below
from ortpipe.errors import ConfigError, TrackingError
from ortpipe.files import atomic_write
from ortpipe.pipeline.events import StageFinished
from ortpipe.settings import Config, Must, NotNegative, checked

FILE = "run.json"
FORMAT = 3
COMMAND = "ortpipe.command"  # the tag with the command that started the run
GATES = "ortpipe.gates"  # the tag with the outcome of its gates, see `app.gates`
Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]  # as MLflow calls them
RUNNING: Final = "RUNNING"
FINISHED: Final = "FINISHED"
FAILED: Final = "FAILED"
KILLED: Final = "KILLED"
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
PARTS = {"version": int, "input": str | None, "packages": dict[str, str], "machine": str}  # of every stage's key
DATA = {
    "digest": str,
    "rows": dict[str, int],
    "digests": dict[str, str] | None,
    "source": dict[str, Any],
}  # of a run, where there are any
DATA |= dict.fromkeys(("columns", "label"), dict[str, dict[str, Any]] | None)
MODEL = {"from": str, "task": str, "discrepancy": float | None, "parameters": dict[str, tuple[int, ...]]}
DRIFT: dict[str, Any] = dict.fromkeys(("psi", "p_value", "new_words", "outside"), float | None)  # of each column
DRIFT |= {"kind": str, "test": str | None, "share": tuple[float, float], "bins": tuple[str, ...]}
DRIFT |= dict.fromkeys(("old", "new"), tuple[float, ...])
GROUPS = ("recorder", "paths", "convert")  # of a config, that are read before it is validated
LATEST = 253_402_300_799_000  # milliseconds since 1970 until the year 10000, the last that datetime knows

MOST_TIMES = 400  # of epochs that a record keeps

ID = re.compile(r"[0-9a-f]{32}")  # of an MLflow run

# A record may come from another user: its names become parts of paths, pages and queries
StageName = Annotated[str, Must("the name of a stage", re.compile(r"\w+", re.ASCII).fullmatch)]
Id = Annotated[str, Must("an id of letters, digits and -", re.compile(r"[\w-]+", re.ASCII).fullmatch)]
Time = Annotated[int, Ge(0), Le(LATEST)]


@dataclass(frozen=True)
class StageRecord(Config):
    """A finished stage; if its result came from the store, `origin` is the run that computed it."""

    name: StageName
    key: str  # of its result in the store
    parts: dict[str, Any]  # the values that the key hashes, see `digest.parts_of`
    output: str  # the digest of its result
    seconds: NotNegative  # its duration in this run
    origin: dict[str, Any] | None = None  # the `folder` and `mlflow` id of that run, when it was `made`, its `seconds`
    ended: Time | None = None  # in milliseconds since 1970

    def __post_init__(self) -> None:
        for name, kind in PARTS.items():
            checked(self.parts.get(name), kind, f"parts.{name}")
        if self.origin is not None:
            checked(self.origin.get("seconds"), NotNegative, "origin.seconds")

    @classmethod
    def of(cls, event: StageFinished) -> Self:
        """Return the record of a stage that has just finished."""
        entry = event.hit
        origin = None if entry is None else {**entry.run, "made": entry.made, "seconds": entry.seconds}
        return cls(event.name, event.key, dict(event.parts), event.output, event.seconds, origin, now())


@dataclass(frozen=True)
class JobRecord(Config):
    """A job of a sweep: the sweep's id, the job's number from 0, and the values of its varying keys."""

    sweep: str
    number: int
    varies: dict[str, str]


@dataclass(frozen=True)
class Manifest(Config):
    """The data that all jobs of a sweep share: its working folder, the keys that do not vary, and the objective.

    With `live`, jobs print nothing: the sweep's process shows them in a table on the terminal.
    """

    cwd: str
    fixed: tuple[str, ...]
    objective: str
    live: bool = False


def origin_tags(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the tags with the origin of a run or a sweep; see `environment` for the facts."""
    commit = environment["git_commit"].removesuffix("-dirty")
    git = {"mlflow.source.git.commit": commit} if re.fullmatch("[0-9a-f]{40}", commit) else {}
    return {
        "mlflow.source.name": "ortpipe",
        "mlflow.source.type": "LOCAL",
        "mlflow.user": user(),
        **git,
        COMMAND: environment["command"],
        "ortpipe.git_commit": environment["git_commit"],
        "ortpipe.version": environment["ortpipe"],
        "ortpipe.run_folder": str(folder),
        **this_process(),
    }


def user() -> str:
    """Return the user name of this process, or "unknown", as in some containers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no entry for the id (from 3.13 on, before), or no module pwd
        return "unknown"


def now() -> int:
    """Return the time in milliseconds since 1970, as MLflow does."""
    return int(time.time() * 1000)


@dataclass
class RunRecord(Config):
    """One run, one job or one sweep."""

    folder: Path  # its location; not part of the file
    name: str  # its displayed name
    tags: dict[str, str]  # known at the start, such as its process
    plan: dict[StageName, str] = field(default_factory=dict)  # the stages in order, with choices from catalogues
    data: dict[str, Any] = field(default_factory=dict)  # see `data_facts`
    id: Id = field(default_factory=lambda: uuid.uuid4().hex)  # independent of the recorder
    started: Time = field(default_factory=now)  # in milliseconds since 1970, as is `ended`
    status: Status = RUNNING  # KILLED if it was stopped
    ended: Time | None = None
    error: str | None = None  # the error that ended it
    stage: StageName | None = None  # the stage that was running then
    again: str | None = None  # the command that continues it, if repeating can help
    model: dict[str, Any] = field(default_factory=dict)  # its source, the discrepancy from it, task, parameters' shapes
    stages: list[StageRecord] = field(default_factory=list)  # those that finished, in order
    epochs: list[list[int]] = field(default_factory=list)  # number and end of epochs; of many, evenly spaced ones
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)  # by state, such as `trained`; a sweep's best
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)  # of the trained model's metrics
    folds: dict[str, tuple[float, ...]] = field(default_factory=dict)  # of cross-validation: a metric's value per fold
    slices: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)  # metrics by column, by value
    importance: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)  # by metric, column: mean, std
    sensitivity: dict[str, float] = field(default_factory=dict)  # by column
    measured: dict[str, float] = field(default_factory=dict)  # while it ran: workers, slices and times, if in parallel
    values: dict[str, float] = field(default_factory=dict)  # possible objectives, such as validation/r2 or train/loss
    gates: dict[str, dict[str, Any]] = field(default_factory=dict)  # by requirement: `value`, `limit`, `passed`
    champion: dict[str, Any] = field(default_factory=dict)  # the comparison with it, see `app.gates`
    drift: dict[str, Any] = field(default_factory=dict)  # the comparison of its rows with a profile, see `app.drift`
    notes: dict[StageName, tuple[str, ...]] = field(default_factory=dict)  # for the reader, of the data and by stage
    mlflow: Id | None = None  # the id of the MLflow run, if there is one
    job: JobRecord | None = None  # of a sweep's job
    sweep: Manifest | None = None  # of a sweep itself

    def __post_init__(self) -> None:
        checked({name: gate.get("passed") for name, gate in self.gates.items()}, dict[str, bool], "gates")
        checked(self.champion.get("passed", True), bool, "champion.passed")
        checked(self.epochs, tuple[tuple[int, int], ...], "epochs")
        checked(self.drift.get("against", ""), str, "drift.against")
        columns: dict[str, Any] = checked(self.drift.get("columns", {}), dict[str, dict[str, Any]], "drift.columns")
        for name, column in columns.items():
            for fact, kind in DRIFT.items():
                checked(column.get(fact), kind, f"drift.columns.{name}.{fact}")
        for key, values, kinds in (("data", self.data, DATA), ("model", self.model, MODEL)):
            for name in kinds if values else ():
                checked(values.get(name), kinds[name], f"{key}.{name}")

    @property
    def seconds(self) -> float | None:
        """The duration of the run; None while it is running."""
        return None if self.ended is None else (self.ended - self.started) / 1000

    @property
    def passed(self) -> bool:
        """Whether the model meets its requirements and, if it is to replace a registered one, is better than that."""
        return all(gate["passed"] for gate in self.gates.values()) and bool(self.champion.get("passed", True))

    @property
    def stage_folders(self) -> list[str]:
        """The folders below `stages/` of the finished stages' artifacts, in order."""
        return [f"{number}_{stage.name}" for number, stage in enumerate(self.stages, start=1)]

    def tick(self, epoch: int) -> None:
        """Append the present time as the end of an epoch; of many epochs, evenly spaced ones are kept."""
        times = self.epochs
        every = times[-1][0] - times[-2][0] if len(times) > 1 else 1
        if epoch % every == 0:
            times.append([epoch, now()])
        if len(times) > MOST_TIMES:
            times[:] = [entry for entry in times if entry[0] % (2 * every) == 0]

    def end(self, status: Status, error: str | None = None, at: int | None = None) -> None:
        """Write the run's final status and its end, `at` or now."""
        self.error = None if error is None else redacted(error)
        self.status, self.ended = status, max(at or now(), self.started)
        self.write()

    def abandon(self, reason: str) -> None:
        """Write that a run was killed, unless it has ended already."""
        if self.status == RUNNING:
            self.end(KILLED, reason)

    def write(self) -> None:
        """Write `run.json`, a line for each field and stage, with secrets masked; a key's parts hold none."""
        facts = {"format": FORMAT, **vars(self)}
        del facts["folder"]
        facts |= hidden({name: facts[name] for name in ("name", "tags", "data", "error", "notes")})
        lines = {name: json.dumps(value, default=vars) for name, value in facts.items()}  # indenting is slow
        if self.stages:
            lines["stages"] = "[\n  " + ",\n  ".join(json.dumps(vars(stage)) for stage in self.stages) + "\n ]"
        text = ",\n".join(f' "{name}": {value}' for name, value in lines.items())
        atomic_write(self.folder / FILE, f"{{\n{text}\n}}\n")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the record of a folder's `run.json`."""
        file = folder / FILE
        try:
            facts = parse_json(read_below(folder, FILE))
            if facts.pop("format") != FORMAT:
                raise TrackingError(
                    f"{FILE} must have format {FORMAT}.", got=file, fix="Use the ortpipe that wrote it."
                )
            facts["stages"] = [StageRecord(**stage) for stage in facts["stages"]]
            for name, kind in (("job", JobRecord), ("sweep", Manifest)):
                facts[name] = None if facts[name] is None else kind(**facts[name])
            return cls(folder.absolute(), **facts)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            rule, actual = f"A run's folder must have a readable {FILE}.", f"{file}: {_reason(error)}"
            fix = "Name a folder that a run wrote: see outputs/runs and outputs/multiruns."
            raise TrackingError(rule, got=actual, fix=fix) from error

    @classmethod
    def read_closed(cls, folder: Path) -> Self:
        """Return what `read` does, after closing as killed a running run whose process has ended."""
        record = cls.read(folder)
        if record.status == RUNNING and gone(record.tags):
            if command := record.tags.get(COMMAND):
                record.again = continuing(command, folder if has_file(folder, CHECKPOINT) else None)
            record.end(KILLED, died(record.tags), at=last_sign(folder))
        return record


def _reason(error: Exception) -> str:
    if not isinstance(error, ConfigError):
        return str(error)
    return error.rule if error.got is None else f"{error.rule} Got: {error.got}"


def config_text(values: Mapping[str, Any]) -> str:
    """Return a config as the YAML that `read_config` reads."""
    text: str = yaml.dump(values, Dumper=DUMPER, sort_keys=False, allow_unicode=True)
    return text


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config in a run's folder as plain data, with no ${…} resolved."""
    return _read(folder, "config.yaml", parse_yaml, dict[str, Any])


def read_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a run from its folder."""
    return _read(folder, "environment.json", parse_json, dict[str, str])


def _read(folder: Path, name: str, parse: Callable[[str], Any], kind: Any) -> Any:
    """Return the content of a file in a run's folder, of the annotated type."""
    try:
        values = checked(parse(read_below(folder, name).decode()), kind, "it")
        checked({group: values.get(group, {}) for group in GROUPS}, dict[str, dict[str, Any]], "it")
    except (OSError, ValueError, yaml.YAMLError) as error:
        rule, actual = f"A run's {name} must not be modified or damaged.", f"{folder / name}: {_reason(error)}"
        raise ConfigError(rule, got=actual, fix="Choose another run.") from error
    return values


def replaced(folder: Path) -> str | None:
    """Return the notice that a new run replaces another one in its folder; None if it replaces none."""
    if not has_file(folder, FILE):
        return None
    try:
        record = RunRecord.read(folder)
    except TrackingError:  # an unreadable record is no loss
        return None
    started = datetime.fromtimestamp(record.started / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"replaces the run of {started} in {folder} ({record.status.lower()})"


def is_copy(folder: Path) -> bool:
    """Return whether a folder is MLflow's copy of a run's files, <run id>/artifacts."""
    return folder.name == "artifacts" and re.fullmatch("[0-9a-f]{32}", folder.absolute().parent.name) is not None


def died(tags: Mapping[str, str]) -> str:
    """Return the error message of a run whose process ended without closing it."""
    return f"process {tags[PID]} on {tags[HOST]} ended without closing this run: it was killed"


def last_sign(folder: Path) -> int | None:
    """Return the last time that a file in a run's folder was written, in milliseconds; None for any other folder."""
    if not has_file(folder, FILE):  # a tag of a shared database may name any folder, also the root of the disk
        return None
    times = []
    for file in files_below(folder):
        with contextlib.suppress(OSError):  # removed meanwhile, or another user's
            times.append(int(file.stat().st_mtime * 1000))
    return max(times, default=None)
