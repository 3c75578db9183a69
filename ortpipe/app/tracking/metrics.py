"""A run's config and results as MLflow's params and metrics: at its end, and epochs while it goes on."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
from safetensors import safe_open

from ortpipe.app.run.clock import times_of
from ortpipe.app.run.record import FINISHED, RunRecord, now, read_config
from ortpipe.artifact import Facts
from ortpipe.graph.apart import Weights
from ortpipe.graph.serial import read_apart
from ortpipe.pipeline.events import Event, RunFinished, StageFinished
from ortpipe.pipeline.flatten import flatten
from ortpipe.stages.train.losses import Epoch

LONGEST = 6000  # characters of a param's value, MLflow's limit
STEP = "losses/step"
LOSSES = {f"losses/{kind}": f"loss/{kind}" for kind in ("step", "train", "validation")}
WATCHED = "monitor/"
MODEL_PARAMS = ("convert.source.", "add_loss.loss.", "penalty.terms.", "train.", "data.source.")
EVERY = 10.0  # seconds from one sending of epochs to the next
MOST_POINTS = 1000  # of a series, as many as one call takes: MLflow draws 320; losses.parquet has every one
MOST_COLUMNS = 50  # whose importance is sent, the largest of more: the report has all
MOST = 300  # epochs in that time; where they are faster, sending would hold them up, and they all go at the end


@dataclass
class Results:
    """What a run's record does not hold: its series and its model.

    As a listener it gathers them while the run goes on: its folder is for people, who may change what is there.
    """

    series: Mapping[str, np.ndarray] = field(default_factory=dict)  # losses and what is watched, of the latest stage
    model: onnx.ModelProto | None = None  # the trained one without its large weights, of a run that finished
    weights: Weights = field(default_factory=dict)  # these
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of the rows of its inputs
    table: Mapping[str, Any] = field(default_factory=dict)  # what it reads of a table as it stands: columns, rows
    kept: int | None = None  # the epoch whose weights early stopping kept

    def __call__(self, event: Event) -> None:
        """Listen."""
        if isinstance(event, StageFinished):
            tensors = event.artifact.tensors
            self.series = {name: tensors[name] for name in tensors if _is_series(name)}
        elif isinstance(event, RunFinished):
            facts = event.artifact.facts
            self.model, self.weights = event.artifact.apart()
            self.sizes, self.table, self.kept = _first(facts, "rows"), _first(facts, "table"), _kept(facts)

    @classmethod
    def read(cls, run: RunRecord) -> Self:
        """Return what the folder of a run or sweep holds."""
        if not run.stages:
            return cls()
        last = run.folder / "stages" / run.stage_folders[-1]
        with safe_open(last / "tensors.safetensors", "numpy") as tensors:
            series = {name: tensors.get_tensor(name) for name in tensors.keys() if _is_series(name)}  # noqa: SIM118 - no dict
        if run.status != FINISHED:
            return cls(series)
        facts = Facts.from_json(json.loads((last / "artifact.json").read_bytes())["facts"])
        model, weights = read_apart(run.folder / "model.onnx")
        return cls(series, model, weights, _first(facts, "rows"), _first(facts, "table"), _kept(facts))


def _first(facts: Facts, key: str) -> Mapping[str, Any]:
    """Return what the first stage recorded of the rows."""
    return facts.lineage[0].get(key, {}) if facts.lineage else {}


def _kept(facts: Facts) -> int | None:
    """Return the epoch that training recorded as the kept one."""
    found = [record["early_stop"]["epoch"] for record in facts.lineage if "early_stop" in record]
    return found[-1] if found else None


def _is_series(name: str) -> bool:
    return name in LOSSES or WATCHED in name


def params(folder: Path) -> dict[str, str]:
    """Return the resolved config as params, under its dotted keys."""
    return {key(name): str(value)[:LONGEST] for name, value in flatten(read_config(folder)).items()}


def model_params(folder: Path) -> dict[str, str]:
    """Return those of its params that a trained model is made with."""
    if not (folder / "config.yaml").exists():
        return {}
    return {name: value for name, value in params(folder).items() if name.startswith(MODEL_PARAMS)}


def key(name: str) -> str:
    """Return a key that MLflow takes: letters, digits and `_-. :/`, the rest as `_`; at most 250 of them.

    >>> key("penalty.terms.layer[0]+bias")
    'penalty.terms.layer_0__bias'
    """
    return "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name)[:250]


def stage_tags(run: RunRecord) -> dict[str, str]:
    """Return a tag for each finished stage: its result was computed, or by which run it was."""
    tags = {}
    for stage in run.stages:
        maker = stage.origin and (stage.origin.get("mlflow") or stage.origin.get("folder") or "an unknown run")
        tags[f"ortpipe.stage.{stage.name}"] = "computed" if maker is None else f"hit from {maker}"
    return tags


def metrics(run: RunRecord, results: Results, model: str | None, sent: range, tested: Any = None) -> list[Any]:
    """Return the losses of steps and epochs, what was watched, the metrics, and the stages' seconds; the curves first.

    Of a series longer than MOST_POINTS evenly spaced points are returned, the first and the last among them: more
    than MLflow draws. Each point has the time at which it happened, as `run.json` knows it, so that the same points are
    sent however often they are. `model` is the id of the logged one that the metrics are of, `sent` are the epochs that
    were recorded while the run went on, and `tested` is the MLflow dataset of the test rows.
    """
    end, ended = run.ended or now(), {stage.name: stage.ended for stage in run.stages}
    points = []
    for name in sorted(results.series, key=lambda name: (name == STEP, WATCHED in name)):
        values = results.series[name]
        epochs = max((len(own) for other, own in results.series.items() if other != STEP), default=0)
        steps = _spaced(np.flatnonzero(~np.isnan(values)) + 1)
        at = times_of(steps * (epochs / len(values)) if name == STEP else steps, run.epochs, ended.get("train") or end)
        points += [
            _metric(LOSSES.get(name, key(name)), float(values[step - 1]), int(moment), int(step))
            for step, moment in zip(steps, at, strict=True)
            if step not in sent or name == STEP
        ]
    if "loss" in run.values:  # of the model that was kept: the curves end with the last epoch
        epochs, trained = results.kept or len(results.series.get("losses/train", ())), ended.get("train") or end
        points.append(_metric("loss/kept", run.values["loss"], trained, epochs, model))
        points.append(_metric("loss/kept_epoch", epochs, trained, 0))
    about = {} if tested is None else {"dataset_name": tested.name, "dataset_digest": tested.digest}
    for name, by_state in run.metrics.items():
        for state, value in by_state.items():
            if run.sweep is not None:
                whose = f"{name}/{state}" if name == "jobs" else f"{state}/{name}"
                points.append(_metric(key(whose), value, end, 0))
            else:
                points.append(
                    _metric(key(f"test/{name}/{state}"), value, ended.get("evaluate") or end, 0, model, **about)
                )
    measured = ended.get("evaluate") or end
    for name, edges in run.intervals.items():
        named = zip(("low", "high"), edges, strict=True)
        points += [
            _metric(key(f"test/{name}/trained_{edge}"), value, measured, 0, model, **about) for edge, value in named
        ]
    for name, columns in run.importance.items():
        means = {column: mean for column, (mean, _) in columns.items()}
        points += [_metric(key(f"importance/{name}/{c}"), v, measured, 0, model) for c, v in _largest(means)]
    points += [_metric(key(f"sensitivity/{c}"), v, measured, 0, model) for c, v in _largest(run.sensitivity)]
    return points + [_metric(f"wall_seconds/{s.name}", s.seconds, s.ended or end, 0) for s in run.stages]


def _largest(columns: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(columns.items(), key=lambda item: -abs(item[1]))[:MOST_COLUMNS]


def _metric(*fields: Any, **about: Any) -> Any:
    """Return MLflow's own record of a point."""
    from mlflow.entities import Metric

    return Metric(*fields, **about)


def _spaced(steps: np.ndarray) -> np.ndarray:
    if len(steps) <= MOST_POINTS:
        return steps
    spaced: np.ndarray = steps[np.linspace(0, len(steps) - 1, MOST_POINTS).round().astype(np.int64)]
    return spaced


class Epochs:
    """Gathers epochs until it is time to send them, so that MLflow's page shows how the losses go."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Epoch]] = []
        self._sent, self._fast = time.monotonic(), False

    def due(self, report: object) -> list[tuple[int, Epoch]]:
        """Take in what a stage reports; return the epochs that are to be sent now, each with its time."""
        if self._fast or not isinstance(report, Epoch):
            return []
        self._waiting.append((now(), report))
        self._fast = len(self._waiting) > MOST
        if self._fast or time.monotonic() - self._sent < EVERY:
            return []
        waiting, self._waiting, self._sent = self._waiting, [], time.monotonic()
        return waiting


def epoch_metrics(epochs: list[tuple[int, Epoch]]) -> list[Any]:
    """Return what is known of epochs, each with its time, under the names that they have at the end."""
    points = []
    for at, epoch in epochs:
        values = {"loss/train": epoch.loss, "loss/validation": epoch.validation}
        values |= {f"{WATCHED}{name}": value for name, value in epoch.metrics.items()}
        points += [_metric(key(name), value, at, epoch.number) for name, value in values.items() if value is not None]
    return points
