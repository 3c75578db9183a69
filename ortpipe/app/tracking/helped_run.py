"""An MLflow run that a helper keeps: MLflow is imported there, while this process imports what the run needs."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from ortpipe.app.run.helper import Helper, HelperEnded, import_all, portable
from ortpipe.app.run.record import FINISHED, RUNNING, RunRecord
from ortpipe.app.tracking.client import import_client
from ortpipe.app.tracking.metrics import Results
from ortpipe.app.tracking.mlflow_run import MlflowRun
from ortpipe.app.tracking.target import Target
from ortpipe.graph.serial import read_apart
from ortpipe.stages.train.losses import Epoch

LARGE = 2**26  # bytes of weights that are read from the run's folder instead of being sent
STATE = ("run_id", "page", "to_register", "registered")


def helper(target: Target) -> Helper:
    """Return a process that imports MLflow, to keep a run's record."""
    return Helper(_Keeper(), partial(_prepare, target))


def _prepare(target: Target) -> None:
    import_client()
    of_database = () if target.tracking_uri.startswith("http") else ("mlflow.store.tracking.sqlalchemy_store",)
    import_all(*of_database, "mlflow.onnx", "ortpipe.runtime.library")


class _Keeper:
    """Has the MLflow run, in the helper; what it knows of the run is what the last call said."""

    def __init__(self) -> None:
        self._run: MlflowRun | None = None

    def __call__(
        self, name: str | None, target: Target, record: RunRecord, results: Results, *arguments: Any
    ) -> tuple[dict[str, Any], Exception | None]:
        """Call a method, if one is named; return what the run then is, and what the method raised."""
        if results.model is not None and not results.weights and record.status == FINISHED:
            results.model, results.weights = read_apart(record.folder / "model.onnx")
        if self._run is None:
            self._record, self._results = record, results
            self._run = MlflowRun(target, record, results=results)
        vars(self._record).update(vars(record))
        vars(self._results).update(vars(results))
        failure: Exception | None = None
        try:
            if name is not None:
                getattr(self._run, name)(*arguments)
        except Exception as error:  # noqa: BLE001 - raised in the other process
            failure = portable(error)
        return _state(self._run), failure


def _state(run: MlflowRun) -> dict[str, Any]:
    return {name: getattr(run, name) for name in STATE}


class HelpedRun:
    """Is to the run's process what `MlflowRun` is, whose attributes and errors it has."""

    run_id: str
    page: str
    to_register: bool
    registered: str | None

    def __init__(self, helper: Helper, target: Target, record: RunRecord, results: Results) -> None:
        self._helper, self._known = helper, (target, record, results)
        self._here: MlflowRun | None = None  # once the helper was killed
        self._call(None)

    def push(self) -> None:
        """Record what the folder has and the record lacks."""
        self._call("push")

    def send(self, epochs: list[tuple[int, Epoch]]) -> None:
        """Record epochs, each with its time, while training goes on."""
        self._call("send", epochs)

    def _call(self, name: str | None, *arguments: Any) -> None:
        try:
            if self._here is None:
                self._call_helper(name, *arguments)
                return
        except HelperEnded:
            target, record, results = self._known
            if record.status == RUNNING:
                raise
            self._here = MlflowRun(target, record, results=results)  # which finds the record, as `ortpipe sync` does
        if name is not None:
            getattr(self._here, name)(*arguments)
        vars(self).update(_state(self._here))

    def _call_helper(self, name: str | None, *arguments: Any) -> None:
        target, record, results = self._known
        if sum(weight.nbytes for weight in results.weights.values()) > LARGE:
            results = dataclasses.replace(results, weights={})
        self._helper.ask(name, target, record, results, *arguments)
        state, failure = self._helper.answer()
        vars(self).update(state)
        if failure is not None:
            raise failure
