"""A run's config and results, as MLflow's params and metrics."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from ortpipe.app.recorded import read_config
from ortpipe.app.tracking.results import LOSSES, Results
from ortpipe.pipeline.flatten import flatten

if TYPE_CHECKING:
    from mlflow.entities import Metric, Param

    from ortpipe.app.run.state import RunState

LONGEST = 6000  # characters of a param's value, MLflow's limit
STEP = "losses/step"


def params(folder: Path) -> list[Param]:
    """Return the resolved config as params, under its dotted keys."""
    from mlflow.entities import Param

    config = read_config(folder)
    flat = {key(name): str(value)[:LONGEST] for name, value in flatten(config).items()}
    return [Param(name, value) for name, value in flat.items()]


def key(name: str) -> str:
    """Return a key that MLflow takes: letters, digits and `_-. :/`, the rest as `_`; at most 250 of them.

    >>> key("penalty.terms.layer[0]+bias")
    'penalty.terms.layer_0__bias'
    """
    return "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name)[:250]


def metrics(state: RunState, results: Results, model: str | None, sent: range) -> list[Metric]:
    """Return the losses of every step and epoch, what was watched, the metrics, and the stages' seconds.

    All have the time at which the run ended, so that the same points are sent however often they are.

    Args:
        state: of a run that has ended.
        results: its.
        model: the id of the logged model that the metrics are of.
        sent: the epochs that were recorded while it went on.
    """
    from mlflow.entities import Metric

    at = state.ended
    points = [
        Metric(LOSSES.get(name, name), float(value), at, step)
        for name, values in results.series.items()
        for step, value in enumerate(values, start=1)
        if not math.isnan(value) and (step not in sent or name == STEP)
    ]
    points += [Metric(f"seconds/{name.partition('_')[2]}", value, at, 0) for name, value in state.stages.items()]
    points += [
        Metric(f"{when}/{name}", value, at, 0, model_id=model)
        for name, values in results.metrics.items()
        for when, value in values.items()
    ]
    return points
