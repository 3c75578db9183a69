"""The run folder: everything needed to understand and repeat a run, with or without tracking."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortpipe.app.run.checkpoint import write_checkpoint
from ortpipe.app.run.inputs import keep_inputs
from ortpipe.files import whole_file
from ortpipe.pipeline.events import Event, RunFinished, RunStarted, StageFinished, StageProgressed

OF_ONE_RUN = (
    "run.json",  # first: what says FINISHED does not outlive what it speaks of
    *("inputs", "stages", "figures", "model.onnx", "model.onnx.data"),
    *("lock.json", "losses.parquet", "metrics.json", "timings.json"),
)


class RunFolder:
    """Writes a run's files as the run goes on.

    - `config.yaml`, `environment.json`, `inputs/`: at the start;
    - `checkpoint.safetensors`: what training continues from, as often as train.checkpoint says;
    - `stages/<number>_<name>/`: each artifact, with its graph as text in `model.txt`; the files of one that is in the
      store are links to it;
    - `lock.json`: after every stage, what it was made of and where it came from;
    - `model.onnx`, `losses.parquet`, `metrics.json`, `figures/*.png`, `timings.json`: at the end.

    Other listeners add to it: `StageLogs`, `RunState` and `Report`.

    Args:
        folder: where; it is made if it is not there.
        config: the resolved config as YAML.
        environment: see `environment`.
    """

    def __init__(self, folder: Path, config: str, environment: Mapping[str, str]) -> None:
        self.folder, self._config, self._environment = folder, config, environment
        self._timings: dict[str, float] = {}
        self._lock: list[dict[str, Any]] = []

    def __call__(self, event: Event) -> None:
        """Listen."""
        if isinstance(event, RunStarted):
            self._start(event)
        elif isinstance(event, StageProgressed):
            self._keep(event.report)
        elif isinstance(event, StageFinished):
            self._save(event)
        elif isinstance(event, RunFinished):
            self._finish(event)

    def _start(self, event: RunStarted) -> None:
        for name in OF_ONE_RUN:  # of an older run into the same folder
            place = self.folder / name
            if place.is_dir():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)
        whole_file(self.folder / "config.yaml", self._config)
        keep_inputs(event.plan, self.folder)
        whole_file(self.folder / "environment.json", _json(self._environment))

    def _save(self, event: StageFinished) -> None:
        from ortpipe.artifact import save_artifact
        from ortpipe.graph.show import to_text

        self._timings[event.name] = event.seconds
        place = self.folder / "stages" / f"{event.number}_{event.name}"
        save_artifact(event.artifact, place, like=event.stored)
        whole_file(place / "model.txt", to_text(event.artifact.model))
        self._lock.append(locked(event))
        whole_file(self.folder / "lock.json", _json({"format": 1, "stages": self._lock}))

    def _keep(self, report: object) -> None:
        from ortpipe.stages.train.checkpoint import Checkpoint

        if isinstance(report, Checkpoint):
            write_checkpoint(report, self.folder)

    def _finish(self, event: RunFinished) -> None:
        from ortpipe.app.run.losses import as_parquet, losses_table
        from ortpipe.graph.serial import write_whole
        from ortpipe.stages.evaluate.figures import figures

        artifact = event.artifact
        write_whole(artifact.model, self.folder)
        whole_file(self.folder / "losses.parquet", as_parquet(losses_table(artifact)))
        whole_file(self.folder / "metrics.json", _json(artifact.facts.as_json().get("metrics", {})))
        for name, png in figures(artifact).items():
            whole_file(self.folder / "figures" / f"{name}.png", png)
        whole_file(self.folder / "timings.json", _json({**self._timings, "total": event.seconds}))


def _json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def locked(event: StageFinished) -> dict[str, Any]:
    """Return a stage's part of the lock file: key and what it stands for, input and output, and where it came from.

    That is the run (`folder`, `mlflow`) which computed it, when (`made`, seconds since 1970) and in how many `seconds`.
    """
    return {
        "stage": event.name,
        "version": event.parts["version"],
        "key": event.key,
        "parts": event.parts,
        "input": event.given,
        "output": event.output,
        "hit": event.hit is not None,
        "from": None if event.hit is None else {**event.hit.run, "made": event.hit.made, "seconds": event.hit.seconds},
        "seconds": event.seconds,
    }
