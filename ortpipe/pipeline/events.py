"""The events that a run sends to its listeners."""

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
class Began:
    """A stage's first report of its progress: it computes its result, which the store lacks."""


@dataclass(frozen=True)
class StageProgressed:
    """A stage reported its progress, such as an epoch."""

    name: str
    report: object
    seconds: float = 0.0  # since the stage started


@dataclass(frozen=True)
class StageNotice:
    """A message for the user about a stage, such as a wait for another process."""

    name: str
    message: str
    stored: bool = False  # reported first by the run that computed the result


@dataclass(frozen=True)
class StageFinished:
    """A stage succeeded, or its result was in the store."""

    name: str
    number: int  # counted from 1
    artifact: Artifact  # its result
    seconds: float  # the stage's time in this run
    key: str  # the result's key
    parts: Mapping[str, Any]  # the content of the key, see `digest.parts_of`
    output: str  # the digest of its result
    stored: Path | None  # the artifact's folder in the store, if it is stored
    hit: Entry | None  # the store's entry of a cache hit; None if the stage ran


@dataclass(frozen=True)
class RunFinished:
    """Every stage succeeded."""

    artifact: Artifact


@dataclass(frozen=True)
class RunFailed:
    """A stage raised; `killed` if the user or the system stopped it."""

    error: BaseException
    stage: str
    killed: bool


Event = RunStarted | StageStarted | StageProgressed | StageNotice | StageFinished | RunFinished | RunFailed
Listener = Callable[[Event], None]
