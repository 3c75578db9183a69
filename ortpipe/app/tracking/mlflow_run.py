"""A run's record in MLflow, updated from its results and its folder, during the run or later (`ortpipe sync`)."""

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ortpipe.app.redact import redacted
from ortpipe.app.run.checkpoint import FILE as CHECKPOINT
from ortpipe.app.run.folder import EXAMPLE, read_example
from ortpipe.app.run.process import HOST, PID
from ortpipe.app.run.record import FILE, FINISHED, GATES, RUNNING, RunRecord, is_copy
from ortpipe.app.tracking.client import ERROR, NOTE, PARENT, open_store, reached, terminate
from ortpipe.app.tracking.datasets import datasets
from ortpipe.app.tracking.description import description
from ortpipe.app.tracking.keys import keys
from ortpipe.app.tracking.metrics import LONGEST, Results, epoch_metrics, metrics, model_params, params, stage_tags
from ortpipe.app.tracking.model import log_model, logged_model, register
from ortpipe.app.tracking.target import Target
from ortpipe.bounded import all_regular, file_below, files_below, has_file, parse_json, read_below
from ortpipe.errors import TrackingError
from ortpipe.files import atomic_write
from ortpipe.stages import Epoch

LEDGER = "mlflow.json"
PER_CALL, POINTS = 100, 1000  # MLflow's limits of params or tags, and of points of metrics
RUN = "ortpipe.run"  # the tag with the run's own id, which finds its record again
CONFIG = ("config.yaml", "environment.json")
DRAWN = ("figures", "report.md", "report.html")  # a sweep's job may get these long after its end
OWN = {LEDGER, "stages", CHECKPOINT, EXAMPLE, *CONFIG}  # recorded separately, or not at all


class MlflowRun:
    """An MLflow run; `mlflow.json` in the run's folder stores its id, and the parts that are recorded.

    Sending a part twice has no effect, so a record that was interrupted at any point can be completed.
    """

    def __init__(
        self,
        target: Target,
        record: RunRecord,  # which may still be running
        parent: str | None = None,  # the MLflow run of its sweep, if it differs from the tags
        results: Results | None = None,  # during the run; by default they are read from its folder
    ) -> None:
        self._target, self._run = target, record
        self._results = functools.cache(lambda: results or Results.read(record))
        key = keys(record.tags)
        tags = {**{key[name]: text for name, text in record.tags.items()}, RUN: record.id, NOTE: description(record)}
        tags |= {} if parent is None else {PARENT: parent}
        self._client, self._experiment = open_store(target, tags.get(PARENT))
        mine = f"tags.`{RUN}` = '{record.id}'"
        with reached(target.tracking_uri):  # a new run has no record yet
            runs = [] if record.status == RUNNING else self._client.search_runs([self._experiment], mine)
            self._new = not runs
            if self._new:
                runs = [self._client.create_run(self._experiment, record.started, tags, run_name=record.name)]
        self.run_id = str(runs[0].info.run_id)
        self._tried = set[str]()  # folders that were sent, perhaps partially
        self._done = {} if self._new else self._read_ledger()
        self._earlier = frozenset(self._done)

    @property
    def page(self) -> str:
        """The path of its page on a server, in the view for model training: MLflow defaults to that for LLM traces."""
        return f"#/experiments/{self._experiment}/runs/{self.run_id}?workflowType=machine_learning"

    @property
    def to_register(self) -> bool:
        """Whether to register the run's own model; a sweep registers its best job's."""
        configured = self._target.register is not None and "ortpipe.sweep" not in self._run.tags
        return configured and self._run.passed

    @property
    def registered(self) -> str | None:
        """The version of the registered model that this record has created, and whether it has the alias."""
        return None if self._registration in self._earlier else self._done.get(self._registration)

    @property
    def _registration(self) -> str:
        return f"registered {self._target.register}@{self._target.alias}"

    def push(self) -> None:
        """Record the missing parts of the folder; after a failure, which is raised, only record the end."""
        failure: Exception | None = None
        for name, record in self._parts():
            if name in self._done or (failure is not None and name != "end"):
                continue
            try:
                self._done[name] = record()
            except Exception as error:  # noqa: BLE001 - raised below
                failure = failure or error
        self._write_ledger()
        if failure is not None:
            raise failure

    def send(self, epochs: list[tuple[int, Epoch]]) -> None:
        """Record epochs, each with its time, during training; they are not sent again at the end."""
        log_points(self._client, self.run_id, epoch_metrics(epochs))
        first, _ = self._done.get("epochs", (epochs[0][1].number, None))
        self._done["epochs"] = (first, epochs[-1][1].number + 1)
        self._write_ledger()

    def _parts(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        run = self._run
        if has_file(run.folder, CONFIG[0]):
            yield "config", self._config
        if run.data:
            yield "data", lambda: self._client.log_inputs(self.run_id, datasets(run))
        for folder in run.stage_folders:
            yield f"stages/{folder}", partial(self._folder, f"stages/{folder}")
        if run.status == RUNNING:
            return
        if run.status == FINISHED and run.stages:  # a sweep has neither stages nor a model of its own
            yield "model", self._model
        yield "metrics", self._metrics
        yield "files", self._files
        if (run.folder / DRAWN[0]).is_dir():
            yield "figures", self._figures
        if self.to_register and "model" in self._done:
            yield self._registration, lambda: register(self._client, self._target, self._done["model"], self._run)
        yield "end", self._end

    def _config(self) -> None:
        from mlflow.entities import Param

        self._log("params", list(itertools.starmap(Param, params(self._run.folder).items())))
        for name in CONFIG:
            self._client.log_artifact(self.run_id, str(file_below(self._run.folder, name)))

    def _folder(self, name: str) -> None:
        """Record a folder's regular files.

        One call for all takes a third of the time, but on a local store it would overwrite existing files, which may be
        read-only. So files of a folder that was sent before, perhaps partially, are sent one by one.
        """
        first = self._new and name not in self._tried
        self._tried.add(name)
        if first and all_regular(self._run.folder, name):
            self._client.log_artifacts(self.run_id, str(self._run.folder / name), name)
            return
        for path in files_below(self._run.folder, name):
            below = path.parent.relative_to(self._run.folder).as_posix()
            self._client.log_artifact(self.run_id, str(path), below)

    def _model(self) -> str:
        place = (self._client, self.run_id, self._experiment)
        earlier = None if self._new else logged_model(*place)
        results = self._results()
        example = read_example(self._run.folder)
        if earlier is not None:
            return earlier
        made_with = model_params(self._run.folder)
        model = (results.model, results.weights)
        return log_model(*place, *model, results.sizes, results.table, example, made_with)

    def _metrics(self) -> None:
        from mlflow.entities import RunTag

        sent = range(*self._done.get("epochs", (0, 0)))
        tested = next(
            (dataset.dataset for dataset in datasets(self._run) if dataset.dataset.name.endswith(" test")), None
        )
        gates = {name: text for name, text in self._run.tags.items() if name == GATES}
        tags = {**stage_tags(self._run), **gates, NOTE: description(self._run)}
        self._log("tags", list(itertools.starmap(RunTag, tags.items())))
        points = metrics(self._run, self._results(), self._done.get("model"), sent, tested)
        log_points(self._client, self.run_id, points)

    def _log(self, kind: str, entities: Sequence[Any]) -> None:
        for first in range(0, len(entities), PER_CALL):
            self._client.log_batch(self.run_id, **{kind: entities[first : first + PER_CALL]})

    def _files(self) -> None:
        later = DRAWN if (self._run.folder / DRAWN[0]).is_dir() else ()
        folder = self._run.folder
        names = {path.relative_to(folder).parts[0] for path in files_below(folder)}
        self._send(names.difference(later))

    def _figures(self) -> None:
        self._send(DRAWN)

    def _send(self, names: Iterable[str]) -> None:
        for path in sorted(self._run.folder / name for name in names):
            if path.name in OWN or path.name.startswith(".") or is_run(path):
                continue
            if has_file(self._run.folder, path.name):
                self._client.log_artifact(self.run_id, str(path))
            elif any(files_below(self._run.folder, path.name)):
                self._folder(path.name)

    def _end(self) -> None:
        run = self._run
        if run.error is not None:
            self._client.set_tag(self.run_id, ERROR, run.error[:LONGEST])
        elif not self._new and ERROR in self._client.get_run(self.run_id).data.tags:
            self._client.delete_tag(self.run_id, ERROR)  # it was recorded as killed
        terminate(self._client, self.run_id, run.status, run.ended)

    def _read_ledger(self) -> dict[str, Any]:
        try:
            ledger = parse_json(read_below(self._run.folder, LEDGER))
            return dict(ledger["done"]) if ledger["run_id"] == self.run_id else {}
        except (OSError, ValueError, KeyError, TypeError):  # damaged: everything is sent again
            return {}

    def _write_ledger(self) -> None:
        ledger = {"tracking_uri": redacted(self._target.tracking_uri), "run_id": self.run_id, "done": self._done}
        atomic_write(self._run.folder / LEDGER, json.dumps(ledger) + "\n")


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run or sweep that began: a job may have failed before."""
    return has_file(folder, FILE) and has_file(folder, CONFIG[0])


def log_points(client: Any, run_id: str, points: Sequence[Any]) -> None:
    """Record points, MLflow's `Metric`s; a point that is recorded already is not duplicated."""
    for first in range(0, len(points), POINTS):
        client.log_batch(run_id, metrics=points[first : first + POINTS])


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
