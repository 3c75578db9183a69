"""The MLflow run of a sweep: its jobs' runs are its children, its own record is the summary of them."""

import sys

from ortpipe.app.run.record import RunRecord
from ortpipe.app.tracking.client import close_dead, open_store, reached
from ortpipe.app.tracking.mlflow_run import MlflowRun
from ortpipe.app.tracking.model import register_run
from ortpipe.app.tracking.target import Target

BEST = "ortpipe.best"  # the tag with the run of the best job


class SweepRun:
    """Opened before the first job, closed after the last; then a failure is printed, and loses nothing of the folder.

    Args:
        target: where to record.
        record: the sweep's.

    Raises:
        TrackingError: the database or server cannot be reached.

    Attributes:
        run_id: the MLflow run.
    """

    def __init__(self, target: Target, record: RunRecord) -> None:
        self._target, self._folder = target, record.folder
        self._run = MlflowRun(target, record)
        self.run_id = self._run.run_id

    def close(self, best: str | None) -> None:
        """Record what the sweep's folder holds now that its state has ended, and close runs whose process is gone.

        Args:
            best: the MLflow run of the best job: named, and registered if a name for that is configured.
        """
        try:
            self._run.push()
            client, experiment = open_store(self._target, self.run_id)
            close_dead(client, experiment)
            if best is not None:
                name_best(self._target, self.run_id, best)
        except Exception as error:  # noqa: BLE001 - tracking never ends a sweep, whatever it raises
            print(f"warning: MLflow did not record all of the sweep: {error}", file=sys.stderr)
            print(f"  its folder holds it; record it later with: ortpipe sync {self._folder}", file=sys.stderr)

    def withdraw(self) -> None:
        """Take the run back: no job began."""
        try:
            client, _ = open_store(self._target, self.run_id)
            client.set_terminated(self.run_id, "FAILED")
            client.delete_run(self.run_id)
        except Exception as error:  # noqa: BLE001 - the error that ended the sweep matters more
            print(f"warning: MLflow keeps {self.run_id}, a sweep without jobs: {error}", file=sys.stderr)


def name_best(target: Target, sweep: str, best: str) -> None:
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
