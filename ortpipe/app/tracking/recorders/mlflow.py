"""Record to MLflow: config, graphs, tensors, losses, metrics, figures, environment, and a model that predicts."""

import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ortpipe.app.run.record import RunRecord
from ortpipe.app.tracking.client import close_databases, close_dead, open_store
from ortpipe.app.tracking.metrics import Epochs, Results
from ortpipe.app.tracking.mlflow_run import MlflowRun
from ortpipe.app.tracking.model import name_best
from ortpipe.app.tracking.recorders import Recorder, Recording
from ortpipe.app.tracking.target import Target
from ortpipe.errors import TrackingError
from ortpipe.pipeline.events import Event, RunFailed, RunFinished, RunStarted, StageFinished, StageProgressed

EVERY = 1.0  # the least seconds between updates with finished stages: cache hits finish within one


@dataclass(frozen=True)
class Mlflow(Target, Recorder):
    """One MLflow run per job, and one for a sweep.

    Attributes:
        system_metrics: whether MLflow's monitor records CPU, memory, disk and network during the run.
    """

    system_metrics: bool = False

    def __call__(self, record: RunRecord, config: dict[str, Any]) -> Recording:
        """Open the record of a run."""
        return MlflowRecording(self, record, watched=self.system_metrics)

    def open_sweep(self, record: RunRecord) -> Recording:
        """Open the record of a sweep; its jobs' runs are children of it."""
        return MlflowSweepRecording(self, record)


class _MlflowRecording(Recording):
    """The MLflow run of a run or a sweep; a failure to record it is reported, and stops nothing."""

    run_id: str

    def __init__(self, target: Target, record: RunRecord, results: Results | None = None) -> None:
        self._target, self._run = target, MlflowRun(target, record, results=results)
        self._failed: Exception | None = None
        register = [] if target.register is None else [f"recorder.register={target.register}"]  # which needs consent
        self._command = shlex.join(["ortpipe", "sync", str(record.folder), *register])  # completes the record
        uri = target.tracking_uri
        page = f"mlflow ui --backend-store-uri {shlex.quote(uri)}"
        page = f"{uri.rstrip('/')}/{self._run.page}" if uri.startswith("http") else page
        self.run_id = self._run.run_id
        self.summary = {"MLflow run": self.run_id, "open the page": page}

    def check(self) -> None:
        """Raise if the model should have been registered and was not."""
        if not self._is_unregistered:
            return
        raise TrackingError(
            "A model must be recorded before it can be registered.",
            key="recorder.register",
            got=f"{self._target.register}: not registered ({str(self._failed).strip().partition(chr(10))[0][:300]})",
            fix=f"The results are complete. Once MLflow is available, run: {self._command}",
        )

    @property
    def _is_unregistered(self) -> bool:
        return self._run.to_register and self._run.registered is None


class MlflowRecording(_MlflowRecording):
    """Keeps a run's record up to date; a failure during the run is reported once."""

    def __init__(self, target: Target, record: RunRecord, *, watched: bool = False) -> None:
        self._results, self._epochs = Results(), Epochs()
        super().__init__(target, record, self._results)
        self._pushed = 0.0  # time of the last push, by the monotonic clock
        self._watch = _watch(self.run_id, target.tracking_uri) if watched else lambda: None

    def __call__(self, event: Event) -> None:
        """Handle an event; after a failure, retry only once, at the run's end."""
        self._results(event)
        last = isinstance(event, RunFinished | RunFailed)
        if last:
            self._watch()
        try:
            starts = isinstance(event, RunStarted)
            if last or (self._failed is None and (starts or (isinstance(event, StageFinished) and self._is_due()))):
                self._run.push()
                self._pushed = time.monotonic()
                if self._failed is not None:
                    print("MLflow has now recorded everything", file=sys.stderr)
                    self._failed = None
                if self._run.registered is not None:
                    self.summary = {**self.summary, "registered": self._run.registered}
            elif (
                isinstance(event, StageProgressed)
                and self._failed is None
                and (epochs := self._epochs.due(event.report))
            ):
                self._run.send(epochs)
        except Exception as error:  # noqa: BLE001 - no tracking error may stop training
            if self._failed is None:
                reason = str(error).strip().splitlines() or ["?"]
                print(f"warning: MLflow did not record everything: {reason[0][:300]}", file=sys.stderr)
            if last:
                print(f"  the run folder holds it; record it later with: {self._command}", file=sys.stderr)
            self._failed = error

    def _is_due(self) -> bool:
        return time.monotonic() - self._pushed > EVERY


class MlflowSweepRecording(_MlflowRecording):
    """A sweep's MLflow run, open from the first to the last job; failures while closing are only reported."""

    def __init__(self, target: Target, record: RunRecord) -> None:
        super().__init__(target, record)
        close_databases()

    def close(self, best: RunRecord | None) -> None:
        """Record the sweep's folder after its end, and close runs whose process has ended."""
        try:
            self._run.push()
            close_dead(*open_store(self._target, self.run_id))
            if best is not None and best.mlflow is not None:
                MlflowRun(self._target, best).push()
                name_best(self._target, self._run.run_id, best.mlflow, best)
        except Exception as error:  # noqa: BLE001 - no tracking error may end a sweep
            print(f"warning: MLflow did not record all of the sweep: {error}", file=sys.stderr)
            print(f"  its folder holds it; record it later with: {self._command}", file=sys.stderr)
            self._failed = error

    @property
    def _is_unregistered(self) -> bool:
        return self._failed is not None and self._target.register is not None

    def withdraw(self) -> None:
        """Delete the run because no job started."""
        try:
            client, _ = open_store(self._target, self.run_id)
            client.set_terminated(self.run_id, "FAILED")
            client.delete_run(self.run_id)
        except Exception as error:  # noqa: BLE001 - the error that ended the sweep matters more
            print(f"warning: MLflow keeps {self.run_id}, a sweep without jobs: {error}", file=sys.stderr)


def _watch(run_id: str, uri: str) -> Callable[[], None]:
    """Start to send the machine's load to a run every ten seconds; return a function that stops it."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    monitor = SystemMetricsMonitor(run_id, tracking_uri=uri)
    monitor.start()
    return monitor.finish
