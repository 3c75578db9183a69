"""Recording a run's folder afterwards: what tracking missed while the run went on, or never heard of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ortpipe.app.run.state import FILE, RUNNING, RunState
from ortpipe.app.tracking.process import HOST, PID
from ortpipe.app.tracking.record import Record
from ortpipe.errors import TrackingError

if TYPE_CHECKING:
    from ortpipe.app.recorders.mlflow import Mlflow


def run_folders(folder: Path) -> list[Path]:
    """Return a run's folder, or those of all runs below: a sweep's own before its jobs'.

    Raises:
        TrackingError: there are none.
    """
    found = sorted(file.parent for file in folder.rglob(FILE))
    if not found:
        fix = "Name the folder of a run or sweep; they lie in outputs/runs and outputs/multiruns."
        raise TrackingError(f"A run's folder has a {FILE}.", got=folder, fix=fix)
    return found


def sync(target: Mlflow, folder: Path) -> Record:
    """Complete the record of a run from its folder, or make it; a job's sweep is recorded first.

    Raises:
        TrackingError: the run still goes on, or the database or server cannot be reached.
    """
    state = RunState.read(folder)
    if state.status == RUNNING:
        raise TrackingError(
            "A run is recorded afterwards when it has ended.",
            got=f"{folder}: process {state.tags.get(PID)} on {state.tags.get(HOST)} is at work on it",
            fix="Wait for its end; if it was killed, sync on the machine that it ran on.",
        )
    sweep = folder.absolute().parent
    parent = sync(target, sweep).run_id if (sweep / FILE).exists() else None
    record = Record(target, state, parent)
    try:
        record.push()
    except Exception as error:
        fix = "Mend that, and give the same command again: nothing is recorded twice."
        raise TrackingError("Every part of a run must be recorded.", got=f"{folder}: {error}", fix=fix) from error
    return record
