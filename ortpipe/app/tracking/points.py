"""What a run folder holds, as MLflow's params and metrics."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortpipe.pipeline.flatten import flatten

if TYPE_CHECKING:
    import numpy as np
    from mlflow.entities import Metric, Param, RunTag

    from ortpipe.app.run.state import RunState

LONGEST = 6000  # characters of a param's value, MLflow's limit
LOSSES = {f"losses/{kind}": f"loss/{kind}" for kind in ("step", "train", "validation")}
STEP, WATCHED = "losses/step", "monitor/"
METRICS = "metrics.json"


def params(folder: Path) -> list[Param]:
    """Return the resolved config as params, under its dotted keys."""
    from mlflow.entities import Param
    from omegaconf import OmegaConf

    config: Any = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    flat = {key(name): str(value)[:LONGEST] for name, value in flatten(config).items()}
    return [Param(name, value) for name, value in flat.items()]


def key(name: str) -> str:
    """Return a key that MLflow takes: letters, digits and `_-. :/`, the rest as `_`; at most 250 of them.

    >>> key("penalty.terms.layer[0]+bias")
    'penalty.terms.layer_0__bias'
    """
    return "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name)[:250]


def metrics(state: RunState, model: str | None, sent: range) -> list[Metric]:
    """Return the losses of every step and epoch, what was watched, the metrics, and the stages' seconds.

    All have the time at which the run ended, so that the same points are sent however often they are.

    Args:
        state: of a run that has ended.
        model: the id of the logged model that the metrics are of.
        sent: the epochs that were recorded while it went on.
    """
    from mlflow.entities import Metric

    at = state.ended
    points = [
        Metric(LOSSES.get(name, name), float(value), at, step)
        for name, values in _series(state).items()
        for step, value in enumerate(values, start=1)
        if not math.isnan(value) and (step not in sent or name == STEP)
    ]
    points += [Metric(f"seconds/{name.partition('_')[2]}", value, at, 0) for name, value in state.stages.items()]
    if (state.folder / METRICS).exists():
        table: dict[str, dict[str, float]] = json.loads((state.folder / METRICS).read_text(encoding="utf-8"))
        points += [
            Metric(f"{when}/{name}", value, at, 0, model_id=model)
            for name, values in table.items()
            for when, value in values.items()
        ]
    return points


def origins(state: RunState) -> list[RunTag]:
    """Return where each stage's result is from, as tags: computed, or taken from the store and by whom it was made."""
    from mlflow.entities import RunTag

    if not state.stages:
        return []
    lock = json.loads((state.folder / "lock.json").read_text(encoding="utf-8"))
    return [RunTag(f"ortpipe.stage.{stage['stage']}", _origin(stage)) for stage in lock["stages"]]


def _origin(stage: dict[str, Any]) -> str:
    if not stage["hit"]:
        return "computed"
    maker = stage["from"] or {}
    return f"hit from {maker.get('mlflow') or maker.get('folder') or 'a run that is not known'}"


def _series(state: RunState) -> dict[str, np.ndarray]:
    """Return the losses by step and epoch, and what was watched, of the last stage that finished."""
    from safetensors import safe_open

    if not state.stages:
        return {}
    with safe_open(state.folder / "stages" / [*state.stages][-1] / "tensors.safetensors", "numpy") as tensors:
        names = [name for name in tensors.keys() if name in LOSSES or WATCHED in name]  # noqa: SIM118 - no dict
        return {name: tensors.get_tensor(name) for name in names}
