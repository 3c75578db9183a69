"""What a run folder says of its run: `run.json` holds its name, tags, times and how it ended."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortpipe.app.recorded import checked
from ortpipe.app.redact import hidden, redacted
from ortpipe.app.run.again import again
from ortpipe.app.run.checkpoint import FILE as CHECKPOINT
from ortpipe.app.tracking.process import HOST, PID, gone, this_process
from ortpipe.errors import OrtpipeError, TrackingError
from ortpipe.files import whole_file
from ortpipe.pipeline.events import Event, RunFailed, RunFinished, RunStarted, StageFinished

if TYPE_CHECKING:
    from ortpipe.artifact import Artifact

FILE = "run.json"
FORMAT = 1
STAGE = re.compile(r"\d+_\w+")  # the name of its folder
COMMAND = "ortpipe.command"  # the tag with the command that started the run
RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"  # as MLflow calls them


@dataclass(frozen=True)
class Format:
    """What a `run.json` of any version has."""

    format: int


def origin(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
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
class RunState:
    """One run's state, which a recorder reads; as a listener it writes `run.json` as the run goes on.

    Attributes:
        folder: the run's.
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
        stages: what each finished stage took in seconds, by its folder's name.
        notes: what the data and each stage want their reader to know, by stage.
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
    stages: dict[str, float] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        """Listen."""
        if isinstance(event, StageFinished):
            self.stages[f"{event.number}_{event.name}"] = event.seconds
            self.model = _about(event.artifact)
            if notes := event.artifact.facts.lineage[-1].get("notes"):
                self.notes[event.name] = list(notes)
        elif isinstance(event, RunFinished):
            self.end(FINISHED)
        elif isinstance(event, RunFailed) and self.status == RUNNING:
            self.stage, self.again = event.stage, self._again(event.error)
            self.end(KILLED if event.killed else FAILED, str(event.error) or type(event.error).__name__)
        if isinstance(event, RunStarted | StageFinished):
            self.write()

    def _again(self, error: BaseException) -> str | None:
        if isinstance(error, OrtpipeError) and not isinstance(error, TrackingError):
            return None  # the same command would fail again: it asks for another config, other data or another model
        return again(self.tags[COMMAND], self.folder if (self.folder / CHECKPOINT).is_file() else None)

    def end(self, status: str, error: str | None = None, at: int | None = None) -> None:
        """Say how the run ended, and when: now, if nothing else is said."""
        self.error = None if error is None else redacted(error)
        self.status, self.ended = status, max(at or now(), self.started)
        self.write()

    def abandon(self, reason: str) -> None:
        """Say of a run that still goes on that its process is ended."""
        if self.status == RUNNING:
            self.end(KILLED, reason)

    def write(self) -> None:
        """Write `run.json`."""
        facts = {"format": FORMAT, **dataclasses.asdict(self)}
        del facts["folder"]
        facts |= hidden({name: facts[name] for name in ("name", "tags", "data", "error", "notes")})
        whole_file(self.folder / FILE, json.dumps(facts, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> RunState:
        """Return a run's state; a run that is not closed and whose process is gone is closed as killed.

        Raises:
            TrackingError: the folder is not a run's, or its file is damaged, or from a later version.
        """
        file = folder / FILE
        try:
            facts = json.loads(file.read_text(encoding="utf-8"))
            if checked(facts, Format)["format"] > FORMAT:
                raise TrackingError(f"{FILE} has format {FORMAT}.", got=file, fix="Use the ortpipe that wrote it.")
            del facts["format"]
            state = cls(**checked({**facts, "folder": folder.absolute()}, cls))
            if strange := [name for name in state.stages if not STAGE.fullmatch(name)]:
                raise ValueError(f"{strange[0]!r} is no stage")
        except (OSError, ValueError, TypeError, RecursionError) as error:
            fix = "Name a folder that a run wrote: they lie in outputs/runs and outputs/multiruns."
            raise TrackingError(f"A run folder has a readable {FILE}.", got=f"{file}: {error}", fix=fix) from error
        if state.status == RUNNING and gone(state.tags):
            state.end(KILLED, died(state.tags), at=last_sign(folder))
        return state


def _about(artifact: Artifact) -> dict[str, Any]:
    from ortpipe.app.run.screen import source_of

    facts = artifact.facts
    shapes = {tensor.name: list(tensor.dims) for tensor in artifact.model.graph.initializer}
    return {
        "from": source_of(facts),
        "task": facts.task,
        "discrepancy": facts.lineage[0].get("discrepancy") if facts.lineage else None,
        "parameters": {name: shapes[name] for name in facts.parameters},
    }


def died(tags: dict[str, str]) -> str:
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
