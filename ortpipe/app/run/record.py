"""`run.json`: what is known of a run, of a sweep or of a sweep's job. Only this module reads and writes it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortpipe.app.redact import hidden, redacted
from ortpipe.app.run.process import HOST, PID, gone, this_process
from ortpipe.errors import TrackingError
from ortpipe.files import atomic_write
from ortpipe.pipeline.events import StageFinished

FILE = "run.json"
FORMAT = 2
COMMAND = "ortpipe.command"  # the tag with the command that started the run
RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"  # as MLflow calls them


@dataclass(frozen=True)
class StageRecord:
    """A stage that finished.

    Attributes:
        name: the stage's.
        version: of its code.
        key: of its result in the store, and `parts`, what the key stands for (see `digest.parts_of`).
        input: the digest of its input artifact; None for the first stage.
        output: the digest of its result.
        seconds: it took in this run.
        origin: of a result that was in the store: the run that computed it (`folder`, `mlflow`), when (`made`, seconds
            since 1970) and in how many `seconds`; None where the stage ran.
    """

    name: str
    version: int
    key: str
    parts: dict[str, Any]
    input: str | None
    output: str
    seconds: float
    origin: dict[str, Any] | None = None

    @classmethod
    def of(cls, event: StageFinished) -> StageRecord:
        """Return the record of a stage that has just finished."""
        entry, version = event.hit, event.parts["version"]
        origin = None if entry is None else {**entry.run, "made": entry.made, "seconds": entry.seconds}
        return cls(event.name, version, event.key, dict(event.parts), event.input, event.output, event.seconds, origin)


@dataclass(frozen=True)
class JobRecord:
    """Which job of a sweep a run is: the sweep's id, the job's number from 0, and its values of what varies."""

    sweep: str
    number: int
    varies: dict[str, str]


@dataclass(frozen=True)
class Manifest:
    """What the jobs of a sweep share: where it was started, the keys that are the same in all, and the objective."""

    cwd: str
    fixed: list[str]
    objective: str


@dataclass(frozen=True)
class Surroundings:
    """The machine and the packages that every stage's parts name."""

    packages: dict[str, str]
    machine: str


def origin_tags(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the tags that say where a run or a sweep comes from; see `environment` for the facts."""
    return {
        "mlflow.source.name": "ortpipe",
        COMMAND: environment["command"],
        "ortpipe.git_commit": environment["git_commit"],
        "ortpipe.version": environment["ortpipe"],
        "ortpipe.run_folder": str(folder),
        **this_process(),
    }


def now() -> int:
    """Return the time in milliseconds, as MLflow counts it."""
    return int(time.time() * 1000)


@dataclass
class RunRecord:
    """One run, one job or one sweep.

    Attributes:
        folder: where it is written; not part of the file.
        name: as it is shown.
        tags: what is known of it before it starts; its process among them.
        plan: the stages in order, each with what the config chooses for it from a catalogue.
        data: the `source` of its rows, their `digest`, and how many `rows` each part has.
        id: its own, whatever records it.
        started: milliseconds since the epoch, as is `ended`.
        status: RUNNING, FINISHED, FAILED, or KILLED where somebody stopped it.
        error: what ended it.
        stage: that was at work then.
        again: the command that does what is left, where repeating can help.
        model: of the last stage that finished, what it was converted `from`, its `task`, how far its predictions were
            from its source's (`discrepancy`), and the shapes of its `parameters`.
        stages: those that finished, in order.
        metrics: each metric's values `before` training, `trained`, and of the `source`; of a sweep, the best job's.
        values: `loss` and each metric of the trained model on the test rows: what an objective may be.
        notes: what the data and each stage want their reader to know, by stage.
        mlflow: the id of the MLflow run, if there is one.
        job: of a sweep's job.
        sweep: of a sweep itself.
    """

    folder: Path
    name: str
    tags: dict[str, str]
    plan: dict[str, str] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: int = field(default_factory=now)
    status: str = RUNNING
    ended: int | None = None
    error: str | None = None
    stage: str | None = None
    again: str | None = None
    model: dict[str, Any] = field(default_factory=dict)
    stages: list[StageRecord] = field(default_factory=list)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    mlflow: str | None = None
    job: JobRecord | None = None
    sweep: Manifest | None = None

    @property
    def seconds(self) -> float | None:
        """How long it took; None while it goes on."""
        return None if self.ended is None else (self.ended - self.started) / 1000

    @property
    def stage_folders(self) -> list[str]:
        """Where the artifacts of the finished stages lie below `stages/`, in order."""
        return [f"{number}_{stage.name}" for number, stage in enumerate(self.stages, start=1)]

    def end(self, status: str, error: str | None = None, at: int | None = None) -> None:
        """Write how the run ended, and when: now, unless `at` says otherwise."""
        self.error = None if error is None else redacted(error)
        self.status, self.ended = status, max(at or now(), self.started)
        self.write()

    def abandon(self, reason: str) -> None:
        """Write of a run that still goes on that its process is ended."""
        if self.status == RUNNING:
            self.end(KILLED, reason)

    def write(self) -> None:
        """Write `run.json`; secrets are hidden, but for the parts of keys, which hold none."""
        facts = {"format": FORMAT, **dataclasses.asdict(self)}
        del facts["folder"]
        facts |= hidden({name: facts[name] for name in ("name", "tags", "data", "error", "notes")})
        atomic_write(self.folder / FILE, json.dumps(facts, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        """Return what a folder's `run.json` says.

        Raises:
            TrackingError: the folder is not a run's, or its file is damaged, or from another version.
        """
        file = folder / FILE
        try:
            facts = json.loads(file.read_text(encoding="utf-8"))
            if facts["format"] != FORMAT:
                raise TrackingError(f"{FILE} has format {FORMAT}.", got=file, fix="Use the ortpipe that wrote it.")
            record: RunRecord = checked({**facts, "folder": folder.absolute()}, cls)
            for stage in record.stages:
                checked(stage.parts, Surroundings)
                if not re.fullmatch(r"\w+", stage.name):  # it names a folder
                    raise ValueError(f"{stage.name!r} is no stage")
            return record
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            fix = "Name a folder that a run wrote: they lie in outputs/runs and outputs/multiruns."
            raise TrackingError(f"A run folder has a readable {FILE}.", got=f"{file}: {error}", fix=fix) from error

    @classmethod
    def read_closed(cls, folder: Path) -> RunRecord:
        """Return what `read` does; a run that is not closed and whose process is gone is closed as killed."""
        record = cls.read(folder)
        if record.status == RUNNING and gone(record.tags):
            record.end(KILLED, died(record.tags), at=last_sign(folder))
        return record


def checked(values: Any, kind: Any) -> Any:
    """Return plain values as a type that has their fields; those that it has not are left out.

    Raises:
        ValueError: a field is missing, or of another type.

    >>> checked({"packages": {}, "machine": 5}, Surroundings)
    Traceback (most recent call last):
    ValueError: machine: input should be a valid string
    """
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise ValueError(f"{place}: {first['msg'].lower()}") from None


@functools.cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def is_copy(folder: Path) -> bool:
    """Return whether MLflow keeps a run's files there, in <run id>/artifacts."""
    return folder.name == "artifacts" and re.fullmatch("[0-9a-f]{32}", folder.absolute().parent.name) is not None


def died(tags: Mapping[str, str]) -> str:
    """Return the reason that is given for a run that its process did not close."""
    return f"process {tags[PID]} on {tags[HOST]} ended without closing this run: it was killed"


def last_sign(folder: Path) -> int | None:
    """Return when something was last written in a run's folder, in milliseconds; None for what is no run's folder."""
    if not (folder / FILE).is_file():  # a tag of a shared database may name any folder, also the root of the disk
        return None
    times = []
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            times.append(int(file.stat().st_mtime * 1000))
    return max(times, default=None)
