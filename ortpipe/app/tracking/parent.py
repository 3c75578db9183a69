"""The MLflow run of a sweep: its jobs' runs are its children, its own record is the summary of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ortpipe.app.tracking.model import register_run
from ortpipe.app.tracking.record import Record
from ortpipe.app.tracking.store import close_dead, open_store, reached

if TYPE_CHECKING:
    from ortpipe.app.recorders.mlflow import Mlflow
    from ortpipe.app.run.state import RunState

BEST = "ortpipe.best"  # the tag with the run of the best job


class Parent:
    """Opened before the first job, closed after the last; then a failure is said, and loses nothing of the folder.

    Args:
        target: where to record.
        state: the sweep's.

    Raises:
        TrackingError: the database or server cannot be reached.

    Attributes:
        run_id: the MLflow run.
    """

    def __init__(self, target: Mlflow, state: RunState) -> None:
        self._target, self._state = target, state
        self._record = Record(target, state)
        self.run_id = self._record.run_id

    def close(self, best: str | None) -> None:
        """Record what the sweep's folder holds now that its state has ended, and close runs whose process is gone.

        Args:
            best: the MLflow run of the best job: named, and registered if a name for that is configured.
        """
        try:
            self._record.push()
            client, experiment = open_store(self._target, self.run_id)
            close_dead(client, experiment)
            if best is not None:
                name_best(self._target, self.run_id, best)
        except Exception as error:  # noqa: BLE001 - tracking never ends a sweep, whatever it raises
            print(f"warning: MLflow did not record all of the sweep: {error}", file=sys.stderr)
            print(f"  its folder holds it; record it later with: ortpipe sync {self._state.folder}", file=sys.stderr)

    def withdraw(self) -> None:
        """Take the run back: no job began."""
        try:
            client, _ = open_store(self._target, self.run_id)
            client.set_terminated(self.run_id, "FAILED")
            client.delete_run(self.run_id)
        except Exception as error:  # noqa: BLE001 - there is a worse error to tell
            print(f"warning: MLflow keeps {self.run_id}, a sweep without jobs: {error}", file=sys.stderr)


def name_best(target: Mlflow, sweep: str, best: str) -> None:
    """Say in a sweep's MLflow run which is the best job's, and register that one's model if it is to be; once.

    Raises:
        TrackingError: the database or server cannot be reached, or the best job's run has no model.
    """
    client, _ = open_store(target, sweep)
    with reached(target.tracking_uri):
        if client.get_run(sweep).data.tags.get(BEST) == best:
            return
    if target.register is not None:
        version = register_run(target, best)
        print(f"registered     {target.register} version {version}, as {target.alias}")
    with reached(target.tracking_uri):
        client.set_tag(sweep, BEST, best)


def best_job(sweep: Path) -> Path | None:
    """Return the folder of a sweep's best job; None for what is no sweep, or has no result."""
    from ortpipe.app.sweep.status import read_ground
    from ortpipe.app.sweep.summary import Summary

    if not (sweep / "sweep.json").exists():
        return None
    ranked = Summary.of(sweep, read_ground(sweep)).ranked
    return ranked[0].folder if ranked else None
