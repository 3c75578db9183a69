"""Record to MLflow: config, graphs, tensors, losses, metrics, figures, environment, and a model that predicts."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from typing import Any

from ortpipe.app.run.record import RunRecord
from ortpipe.app.tracking.metrics import Epochs, Results
from ortpipe.app.tracking.mlflow_run import MlflowRun
from ortpipe.app.tracking.sweep_run import SweepRun
from ortpipe.app.tracking.target import Target
from ortpipe.pipeline.events import Event, RunFailed, RunFinished, RunStarted, StageFinished, StageProgressed


@dataclass(frozen=True)
class Mlflow(Target):
    """An MLflow run per job."""

    def __call__(self, record: RunRecord, config: dict[str, Any]) -> MlflowRecording:
        """Open a run's record."""
        return MlflowRecording(self, record)

    def open_sweep(self, record: RunRecord) -> SweepRun:
        """Open a sweep's record."""
        return SweepRun(self, record)


class MlflowRecording:
    """Keeps a run's record up to date; a failure while the run goes on is printed once and stops nothing.

    Attributes:
        run_id: the MLflow run.
    """

    def __init__(self, target: Target, record: RunRecord) -> None:
        self._target, self._folder = target, record.folder
        self._results, self._epochs, self._failed = Results(), Epochs(), False
        self._run = MlflowRun(target, record, results=self._results)
        self.run_id = self._run.run_id

    @property
    def summary(self) -> dict[str, str]:
        """The run id and the command that opens the page."""
        uri = self._target.tracking_uri
        page = uri if uri.startswith("http") else f"mlflow ui --backend-store-uri {shlex.quote(uri)}"
        return {"MLflow run": self.run_id, "open the page": page}

    def __call__(self, event: Event) -> None:
        """Listen; after a failure the rest waits for the run's end, where it is tried once more."""
        self._results(event)
        last = isinstance(event, RunFinished | RunFailed)
        try:
            if last or (isinstance(event, RunStarted | StageFinished) and not self._failed):
                self._run.push()
            elif isinstance(event, StageProgressed) and not self._failed and (epochs := self._epochs.due(event.report)):
                self._run.send(epochs)
        except Exception as error:  # noqa: BLE001 - tracking never kills training, whatever it raises
            self._warn(str(error).strip().splitlines(), last)
            self._failed = True

    def _warn(self, reason: list[str], last: bool) -> None:
        if not self._failed:
            print(f"warning: MLflow did not record everything: {(reason or ['?'])[0][:300]}", file=sys.stderr)
        if last:
            command = f"ortpipe sync {shlex.quote(str(self._folder))}"
            print(f"  the run folder holds it; record it later with: {command}", file=sys.stderr)
