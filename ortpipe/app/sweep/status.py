"""What a sweep and each of its jobs say about themselves, as files: `sweep.json`, and `status.json` of every job."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ortpipe.files import whole_file


@dataclass(frozen=True)
class Ground:
    """What the jobs of a sweep share; written to `sweep.json` before the first one starts, wherever jobs run.

    Attributes:
        sweep: its own id.
        cwd: where it was started: relative paths of configs start there.
        fixed: keys that the command sets to one value; what else a job sets is what varies.
        objective: `loss`, or a metric of evaluate.
        parent: the MLflow run of the sweep.
        leader: the process that leads it (see `this_process`).
    """

    sweep: str
    cwd: str
    fixed: Sequence[str]
    objective: str
    parent: str | None
    leader: Mapping[str, str]


@dataclass(frozen=True)
class Status:
    """One job.

    Attributes:
        sweep: whose job it is.
        job: its number, from 0.
        varies: the keys that the sweep varies, and this job's values of them.
        state: how it ended; `running` also where sweep and job were killed at once, and neither could say so.
        values: `loss`, and each metric of the trained model on the test rows.
        seconds: it took.
        error: what was wrong; the traceback is in `error.txt`.
        mlflow: its run.
    """

    sweep: str
    job: int
    varies: Mapping[str, str]
    state: Literal["running", "finished", "failed", "killed"] = "running"
    values: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    error: str | None = None
    mlflow: str | None = None


def write(facts: Ground | Status, folder: Path) -> None:
    """Write a sweep's or a job's file."""
    name = "sweep.json" if isinstance(facts, Ground) else "status.json"
    whole_file(folder / name, json.dumps({"format": 1, **dataclasses.asdict(facts)}, indent=1) + "\n")


def read_ground(sweep: Path) -> Ground:
    """Return what the jobs of a sweep share."""
    return Ground(**_facts(sweep / "sweep.json"))


def read_jobs(sweep: Path, name: str) -> Iterator[tuple[Path, Status]]:
    """Yield the folder and the status of every job that began, in their order; of this sweep only."""
    found = [(file.parent, Status(**_facts(file))) for file in sweep.rglob("status.json")]
    yield from sorted(((f, s) for f, s in found if s.sweep == name), key=lambda pair: pair[1].job)


def number_of(folder: Path, sweep: str) -> int | None:
    """Return which job of a sweep a folder says it is of; None if it is of none."""
    file = folder / "status.json"
    status = Status(**_facts(file)) if file.exists() else None
    return status.job if status is not None and status.sweep == sweep else None


def close_jobs(sweep: Path, name: str) -> None:
    """Write of the jobs that say they are running that they were killed: the sweep is over."""
    for folder, status in read_jobs(sweep, name):
        if status.state == "running":
            write(dataclasses.replace(status, state="killed"), folder)


def _facts(file: Path) -> dict[str, Any]:
    return {key: value for key, value in json.loads(file.read_text(encoding="utf-8")).items() if key != "format"}
