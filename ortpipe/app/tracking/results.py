"""What a run found, of which its record is made: as the run knows it, or as its folder says afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ortpipe.app.run.state import FINISHED, RunState
from ortpipe.pipeline.events import Event, RunFinished, StageFinished

if TYPE_CHECKING:
    import numpy as np
    import onnx

LOSSES = {f"losses/{kind}": f"loss/{kind}" for kind in ("step", "train", "validation")}
WATCHED = "monitor/"


@dataclass
class Results:
    """As a listener it gathers them while the run goes on: its folder is for people, who may change what is there.

    Attributes:
        series: the losses by step and epoch, and what was watched, of the last stage that finished.
        metrics: each metric's values `before` training, `trained`, and of the `source`.
        origins: of each stage's result: computed, or taken from the store and by whom it was made.
        model: the trained one, of a run that finished.
    """

    series: Mapping[str, np.ndarray] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    model: onnx.ModelProto | None = None

    def __call__(self, event: Event) -> None:
        """Listen."""
        if isinstance(event, StageFinished):
            tensors = event.artifact.tensors
            self.series = {name: tensors[name] for name in tensors if _is_series(name)}
            self.origins[event.name] = _origin(event.hit.run if event.hit is not None else None)
        elif isinstance(event, RunFinished):
            self.metrics = event.artifact.facts.as_json().get("metrics", {})
            self.model = event.artifact.model

    @classmethod
    def read(cls, state: RunState) -> Results:
        """Return what the folder of a run or sweep says."""
        from ortpipe.graph.serial import read

        def written(name: str) -> Any:
            file = state.folder / name
            return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

        return cls(
            _series(state),
            written("metrics.json"),
            {stage["stage"]: _origin(stage["from"]) for stage in written("lock.json").get("stages", ())},
            read(state.folder / "model.onnx") if state.status == FINISHED and state.stages else None,
        )


def _is_series(name: str) -> bool:
    return name in LOSSES or WATCHED in name


def _origin(maker: Mapping[str, Any] | None) -> str:
    if maker is None:
        return "computed"
    return f"hit from {maker.get('mlflow') or maker.get('folder') or 'a run that is not known'}"


def _series(state: RunState) -> dict[str, np.ndarray]:
    from safetensors import safe_open

    if not state.stages:
        return {}
    with safe_open(state.folder / "stages" / [*state.stages][-1] / "tensors.safetensors", "numpy") as tensors:
        return {name: tensors.get_tensor(name) for name in tensors.keys() if _is_series(name)}  # noqa: SIM118 - no dict
