"""A run's config and results as MLflow's params and metrics: at its end, and per epoch while it runs."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import onnx
from safetensors import safe_open

from ortpipe import Facts
from ortpipe.app.run.record import FINISHED, RunRecord, now, read_config
from ortpipe.app.tracking.keys import keys
from ortpipe.bounded import MOST_BYTES, file_below, has_file, parse_json, read_below
from ortpipe.facts_json import read_facts
from ortpipe.graph import Weights, read_apart
from ortpipe.pipeline.events import Event, RunFinished, StageFinished
from ortpipe.pipeline.flatten import flatten
from ortpipe.stages import Epoch

LONGEST = 6000  # characters of a param's value, MLflow's limit
STEP = "losses/step"
LOSSES = {f"losses/{kind}": f"loss/{kind}" for kind in ("step", "train", "validation")}
WATCHED = "monitor/"
MODEL_PARAMS = ("convert.source.", "add_loss.loss.", "penalty.terms.", "train.", "data.source.")
EVERY = 10.0  # seconds between two batches of epochs
MOST_POINTS = 320  # of a series, as many as MLflow draws; losses.parquet has all
MOST_COLUMNS = 50  # the columns with the largest importances are sent; the report has all
MOST_EPOCHS = 300  # per batch; more are sent at the end, because sending would slow down training


class Point(NamedTuple):
    """A value of a metric, by a name that MLflow may reject."""

    name: str
    value: float
    timestamp: int
    step: int
    model_id: str | None = None
    dataset_name: str | None = None
    dataset_digest: str | None = None


@dataclass
class Results:
    """The results that a run's record does not hold: its series and its model.

    As a listener it collects them during the run: files in the run's folder may be edited by the user.
    """

    series: Mapping[str, np.ndarray] = field(default_factory=dict)  # losses and monitored metrics of the latest stage
    model: onnx.ModelProto | None = None  # the trained model of a finished run, without its large weights
    weights: Weights = field(default_factory=dict)  # the large weights
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of the rows of its inputs
    table: Mapping[str, Any] = field(default_factory=dict)  # the raw columns that it reads, and a row of them
    kept_epoch: int | None = None  # whose weights early stopping restored

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        if isinstance(event, StageFinished):
            tensors = event.artifact.tensors
            self.series = {name: tensors[name] for name in tensors if _is_series(name)}
        elif isinstance(event, RunFinished):
            facts = event.artifact.facts
            self.model, self.weights = event.artifact.apart()
            self.sizes, self.table, self.kept_epoch = _first(facts, "rows"), _first(facts, "table"), _kept_epoch(facts)

    @classmethod
    def read(cls, run: RunRecord) -> Self:
        """Return the results in the folder of a run or sweep."""
        if not run.stages:
            return cls()
        last = f"stages/{run.stage_folders[-1]}"
        with safe_open(file_below(run.folder, f"{last}/tensors.safetensors"), "numpy") as tensors:
            series = {name: tensors.get_tensor(name) for name in tensors.keys() if _is_series(name)}  # noqa: SIM118 - no dict
        if run.status != FINISHED:
            return cls(series)
        facts = read_facts(parse_json(read_below(run.folder, f"{last}/artifact.json", MOST_BYTES))["facts"])
        model, weights = read_apart(file_below(run.folder, "model.onnx"))
        return cls(series, model, weights, _first(facts, "rows"), _first(facts, "table"), _kept_epoch(facts))


def _first(facts: Facts, key: str) -> Mapping[str, Any]:
    """Return an entry of the first stage's lineage record."""
    return facts.lineage[0].get(key, {}) if facts.lineage else {}


def _kept_epoch(facts: Facts) -> int | None:
    """Return the epoch whose weights early stopping restored, if it did."""
    epochs = [record["early_stop"]["epoch"] for record in facts.lineage if "early_stop" in record]
    return epochs[-1] if epochs else None


def _is_series(name: str) -> bool:
    return name in LOSSES or WATCHED in name


def params(folder: Path) -> dict[str, str]:
    """Return the resolved config as params, by dotted key."""
    values = flatten(read_config(folder))
    key = keys(values)
    return {key[name]: str(value)[:LONGEST] for name, value in values.items()}


def model_params(folder: Path) -> dict[str, str]:
    """Return the params that determine the trained model."""
    if not has_file(folder, "config.yaml"):
        return {}
    return {name: value for name, value in params(folder).items() if name.startswith(MODEL_PARAMS)}


def stage_tags(run: RunRecord) -> dict[str, str]:
    """Return a tag for each finished stage: computed, or the run that computed its result."""
    tags = {}
    for stage in run.stages:
        producer = stage.origin and (stage.origin.get("mlflow") or stage.origin.get("folder") or "an unknown run")
        tags[f"ortpipe.stage.{stage.name}"] = "computed" if producer is None else f"hit from {producer}"
    return tags


def metrics(run: RunRecord, results: Results, model: str | None, sent: range, test_dataset: Any = None) -> list[Any]:
    """Return a run's losses, monitored metrics, test metrics, and the times of workers and stages, the curves first.

    Of a series longer than MOST_POINTS, evenly spaced points are returned, with the first and the last. A point's time
    is that in `run.json`, so that sending it again sends the same point. `model` is the id of the logged model that the
    metrics belong to, `sent` are the epochs that were recorded during the run, and `test_dataset` is the MLflow dataset
    of the test rows.
    """
    end, stage_ends = run.ended or now(), {stage.name: stage.ended for stage in run.stages}
    trained_at, evaluated_at = (stage_ends.get(stage) or end for stage in ("train", "evaluate"))
    points = [*_curves(run, results, sent, trained_at), *_kept(run, results, model, trained_at)]
    points += _evaluated(run, model, evaluated_at, test_dataset) if run.sweep is None else _of_sweep(run, end)
    points += [Point(name, value, trained_at, 0) for name, value in run.measured.items()]
    return _entities(points + [Point(f"wall_seconds/{s.name}", s.seconds, s.ended or end, 0) for s in run.stages])


def _curves(run: RunRecord, results: Results, sent: range, trained_at: int) -> Iterator[Point]:
    """Yield the losses and monitored metrics of steps and epochs."""
    epochs = max((len(series) for name, series in results.series.items() if name != STEP), default=0)
    for name in sorted(results.series, key=lambda name: (name == STEP, WATCHED in name)):
        values = results.series[name]
        steps = _spaced(np.flatnonzero(~np.isnan(values)) + 1)
        at = times_of(steps * (epochs / len(values)) if name == STEP else steps, run.epochs, trained_at)
        for step, moment in zip(steps, at, strict=True):
            if step not in sent or name == STEP:
                yield Point(LOSSES.get(name, name), float(values[step - 1]), int(moment), int(step))


def times_of(places: np.ndarray, times: Sequence[Sequence[int]], otherwise: int) -> np.ndarray:
    """Return the times at which epochs, or fractions of them, ended, in int64 milliseconds, by linear interpolation.

    >>> times_of(np.array([1.0, 1.5, 2.0, 9.0]), [[1, 1000], [2, 1200]], otherwise=0).tolist()
    [1000, 1100, 1200, 1200]
    """
    if not times:
        return np.full(len(places), otherwise, np.int64)
    numbers, moments = np.array(times, np.float64).T
    return np.interp(places, numbers, moments).astype(np.int64)


def _kept(run: RunRecord, results: Results, model: str | None, trained_at: int) -> Iterator[Point]:
    """Yield the loss and the epoch of the restored model: the curves end with the last epoch."""
    loss = next((value for name, value in run.values.items() if name.endswith("/loss")), None)
    if loss is not None:
        epochs = results.kept_epoch or len(results.series.get("losses/train", ()))
        yield Point("loss/kept", loss, trained_at, epochs, model)
        yield Point("loss/kept_epoch", epochs, trained_at, 0)


def _evaluated(run: RunRecord, model: str | None, at: int, test_dataset: Any) -> Iterator[Point]:
    """Yield the metrics of a run's model on test and validation rows, and the importances of columns."""
    dataset = {} if test_dataset is None else {"dataset_name": test_dataset.name, "dataset_digest": test_dataset.digest}
    for name, by_state in run.metrics.items():
        for state, value in by_state.items():
            yield Point(f"test/{name}/{state}", value, at, 0, model, **dataset)
    for name, value in run.values.items():
        if not name.endswith("/loss"):
            yield Point(f"{name}/trained", value, at, 0, model)
    for name, by_fold in run.folds.items():
        for statistic, of_folds in {"mean": np.mean(by_fold), "deviation": np.std(by_fold)}.items():
            yield Point(f"test/{name}/folds_{statistic}", float(of_folds), at, 0, model)
    for name, edges in run.intervals.items():
        for edge, value in zip(("low", "high"), edges, strict=True):
            yield Point(f"test/{name}/trained_{edge}", value, at, 0, model, **dataset)
    for name, columns in run.importance.items():
        for column, value in _largest({column: mean for column, (mean, _) in columns.items()}):
            yield Point(f"importance/{name}/{column}", value, at, 0, model)
    for column, value in _largest(run.sensitivity):
        yield Point(f"sensitivity/{column}", value, at, 0, model)


def _of_sweep(run: RunRecord, end: int) -> Iterator[Point]:
    """Yield the metrics of a sweep's jobs."""
    for name, by_state in run.metrics.items():
        for state, value in by_state.items():
            yield Point(f"{name}/{state}" if name == "jobs" else f"{state}/{name}", value, end, 0)


def _largest(columns: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(columns.items(), key=lambda item: -abs(item[1]))[:MOST_COLUMNS]


def _entities(points: Sequence[Point]) -> list[Any]:
    """Return points as MLflow's `Metric`s."""
    from mlflow.entities import Metric

    key = keys(point.name for point in points)
    return [Metric(key[name], *fields) for name, *fields in points]


def _spaced(steps: np.ndarray) -> np.ndarray:
    if len(steps) <= MOST_POINTS:
        return steps
    spaced: np.ndarray = steps[np.linspace(0, len(steps) - 1, MOST_POINTS).round().astype(np.int64)]
    return spaced


class Epochs:
    """Collects epochs until they are due to be sent: MLflow's page shows the losses during the run."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Epoch]] = []
        self._sent, self._fast = time.monotonic(), False

    def due(self, report: object) -> list[tuple[int, Epoch]]:
        """Add a stage's report; return the epochs that are due to be sent now, each with its time."""
        if self._fast or not isinstance(report, Epoch):
            return []
        self._waiting.append((now(), report))
        self._fast = len(self._waiting) > MOST_EPOCHS
        if self._fast or time.monotonic() - self._sent < EVERY:
            return []
        waiting, self._waiting, self._sent = self._waiting, [], time.monotonic()
        return waiting


def epoch_metrics(epochs: list[tuple[int, Epoch]]) -> list[Any]:
    """Return the points of epochs, each with its time, under the same names as at the end of the run."""
    points: list[Point] = []
    for at, epoch in epochs:
        values = {"loss/train": epoch.loss, "loss/validation": epoch.validation}
        values |= {f"{WATCHED}{name}": value for name, value in epoch.metrics.items()}
        points += [Point(name, value, at, epoch.number) for name, value in values.items() if value is not None]
    return _entities(points)
