"""What a run tells while it goes on; recorders and screens listen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortpipe.artifact import Artifact
    from ortpipe.pipeline.plan import Plan


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


@dataclass(frozen=True)
class StageFinished:
    """A stage succeeded."""

    name: str
    number: int
    artifact: Artifact
    seconds: float


@dataclass(frozen=True)
class RunFinished:
    """Every stage succeeded."""

    artifact: Artifact
    seconds: float


@dataclass(frozen=True)
class RunFailed:
    """A stage raised; `killed` if a person or the system asked it to stop."""

    error: BaseException
    stage: str
    killed: bool


Event = RunStarted | StageStarted | StageProgressed | StageFinished | RunFinished | RunFailed
Listener = Callable[[Event], None]
