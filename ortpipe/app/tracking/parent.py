"""The MLflow run of a sweep: its jobs' runs are its children, its own record is the summary of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ortpipe.app.tracking.process import this_process
from ortpipe.app.tracking.store import close_dead, open_store, reached

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ortpipe.app.recorders.mlflow import Mlflow
    from ortpipe.app.sweep.summary import Summary


class Parent:
    """Opened before the first job, closed after the last.

    Attributes:
        run_id: the MLflow run.

    Raises:
        TrackingError: the database or server cannot be reached.
    """

    def __init__(self, target: Mlflow, name: str, tags: Mapping[str, str]) -> None:
        self._client, self._experiment = open_store(target)
        with reached(target.tracking_uri):
            created = self._client.create_run(self._experiment, run_name=name, tags={**tags, **this_process()})
        self.run_id: str = created.info.run_id

    def close(self, status: str, folder: Path, summary: Summary, error: str | None) -> None:
        """Record the summary, then close the run and those of jobs whose process is gone; warns where it cannot.

        Args:
            status: FINISHED, FAILED or KILLED.
            folder: the sweep's, with the summary's files.
            summary: of its jobs.
            error: why it is not FINISHED.
        """
        try:
            if error is not None:
                self._client.set_tag(self.run_id, "ortpipe.error", error)
            self._record(folder, summary)
            self._client.set_terminated(self.run_id, status)
            close_dead(self._client, self._experiment)
        except Exception as failure:  # noqa: BLE001 - tracking never ends a sweep, whatever it raises
            print(f"warning: MLflow did not record the sweep: {failure}; {folder} does.", file=sys.stderr)

    def withdraw(self) -> None:
        """Take the run back: no job began."""
        try:
            self._client.set_terminated(self.run_id, "FAILED")
            self._client.delete_run(self.run_id)
        except Exception as failure:  # noqa: BLE001 - there is a worse error to tell
            print(f"warning: MLflow keeps {self.run_id}, a sweep without jobs: {failure}", file=sys.stderr)

    def _record(self, folder: Path, summary: Summary) -> None:
        counts = {"jobs": len(summary.rows), "jobs/unfinished": len(summary.unfinished)}
        for name, count in counts.items():
            self._client.log_metric(self.run_id, name, count)
        if summary.ranked:
            best = summary.ranked[0].status
            self._client.set_tag(self.run_id, "ortpipe.best", best.mlflow)
            for name, value in best.values.items():
                self._client.log_metric(self.run_id, f"best/{name}", value)
            for key, setting in best.varies.items():
                self._client.log_param(self.run_id, f"best/{key}", setting)
        cells = summary.cells()
        if cells:
            columns = {name: [str(row[name]) for row in cells] for name in cells[0]}
            self._client.log_table(self.run_id, columns, "summary.json")
        for file in folder.glob("summary.*"):
            self._client.log_artifact(self.run_id, str(file))
