"""Record a finished run in MLflow from its folder, or complete its record."""

from pathlib import Path

from ortpipe.app.run.process import HOST, PID
from ortpipe.app.run.record import FILE, RUNNING, RunRecord, is_copy
from ortpipe.app.tracking.mlflow_run import MlflowRun, is_run
from ortpipe.app.tracking.target import Target
from ortpipe.bounded import files_below, has_file
from ortpipe.errors import TrackingError


def run_folders(folder: Path) -> list[Path]:
    """Return the folders of all runs in a folder, itself included; a sweep's own folder comes before its jobs'."""
    records = sorted(path.parent for path in files_below(folder) if path.name == FILE)
    folders = [path for path in records if is_run(path) and not is_copy(path)]
    if not folders:
        fix = "Name the folder of a run or sweep: see outputs/runs and outputs/multiruns."
        raise TrackingError(f"A run's folder must have a {FILE}.", got=folder, fix=fix)
    return folders


def record_run(target: Target, folder: Path) -> MlflowRun:
    """Create or complete a run's MLflow record from its folder; a job's sweep is recorded first."""
    run = RunRecord.read_closed(folder)
    if run.status == RUNNING:
        raise TrackingError(
            "Only a run that has ended can be recorded from its folder.",
            got=f"{folder}: process {run.tags.get(PID)} on {run.tags.get(HOST)} is still running it",
            fix="Wait for it to end; if it was killed, sync on the machine that it ran on.",
        )
    sweep = folder.absolute().parent
    parent = record_run(target, sweep).run_id if has_file(sweep, FILE) else None
    mlflow_run = MlflowRun(target, run, parent)
    try:
        mlflow_run.push()
    except Exception as error:
        fix = "Correct the error, and run the same command again: nothing is recorded twice."
        raise TrackingError("Every part of a run must be recorded.", got=f"{folder}: {error}", fix=fix) from error
    return mlflow_run
