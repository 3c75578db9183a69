"""What a run tells its listeners while it goes on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortpipe.artifact import Artifact
from ortpipe.pipeline.plan import Plan
from ortpipe.pipeline.store import Entry


@dataclass(frozen=True)
class RunStarted:
    """Before the first stage."""

    plan: Plan


@dataclass(frozen=True)
class StageStarted:
    """Before a stage."""

    name: str
    number: int  # counted from 1
    stages: int


@dataclass(frozen=True)
class StageProgressed:
    """A stage reported something of its own, such as an epoch."""

    name: str
    report: object
    seconds: float = 0.0  # since the stage started


@dataclass(frozen=True)
class StageNotice:
    """Something about a stage that its user should read, such as what it waits for."""

    name: str
    message: str
    stored: bool = False  # said already by the run that computed the result


@dataclass(frozen=True)
class StageFinished:
    """A stage succeeded, or its result was in the store."""

    name: str
    number: int  # counted from 1
    artifact: Artifact  # its result
    seconds: float  # it took in this run
    key: str  # of the result
    parts: Mapping[str, Any]  # what the key stands for, see `digest.parts_of`
    output: str  # the digest of its result
    stored: Path | None  # the folder that holds the same artifact in the store, if one does
    hit: Entry | None  # that it was taken from; None where the stage ran


@dataclass(frozen=True)
class RunFinished:
    """Every stage succeeded."""

    artifact: Artifact


@dataclass(frozen=True)
class RunFailed:
    """A stage raised; `killed` if a person or the system asked it to stop."""

    error: BaseException
    stage: str
    killed: bool


Event = RunStarted | StageStarted | StageProgressed | StageNotice | StageFinished | RunFinished | RunFailed
Listener = Callable[[Event], None]
