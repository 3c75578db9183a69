"""The run folder: everything needed to understand and repeat a run, with or without tracking."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortpipe.app.inputs import keep_inputs
from ortpipe.artifact import Artifact, under
from ortpipe.files import whole_file
from ortpipe.pipeline.events import Event, RunFinished, RunStarted, StageFinished, StageProgressed


class RunFolder:
    """Writes a run's files as the run goes on.

    - `config.yaml`, `environment.json`, `inputs/`: at the start;
    - `checkpoint/`: what training continues from, as often as train.checkpoint says;
    - `stages/<number>_<name>/`: each artifact, with its graph as text in `model.txt`; the files of one that is in the
      store are links to it;
    - `lock.json`: after every stage, what it was made of and where it came from;
    - `model.onnx`, `losses.csv`, `metrics.json`, `figures/*.png`, `timings.json`: at the end.

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
            whole_file(self.folder / "config.yaml", self._config)
            keep_inputs(event.plan, self.folder)
            whole_file(self.folder / "environment.json", json.dumps(self._environment, indent=1) + "\n")
        elif isinstance(event, StageProgressed):
            self._keep(event.report)
        elif isinstance(event, StageFinished):
            self._save(event)
        elif isinstance(event, RunFinished):
            self._finish(event)

    def _save(self, event: StageFinished) -> None:
        from ortpipe.graph.serial import save_artifact
        from ortpipe.graph.show import to_text

        self._timings[event.name] = event.seconds
        place = self.folder / "stages" / f"{event.number}_{event.name}"
        save_artifact(event.artifact, place, like=event.stored)
        whole_file(place / "model.txt", to_text(event.artifact.model))
        self._lock.append(locked(event))
        whole_file(self.folder / "lock.json", json.dumps({"format": 1, "stages": self._lock}, indent=1) + "\n")

    def _keep(self, report: object) -> None:
        from ortpipe.app.checkpoint import write_checkpoint
        from ortpipe.stages.train.checkpoint import Checkpoint

        if isinstance(report, Checkpoint):
            write_checkpoint(report, self.folder)

    def _finish(self, event: RunFinished) -> None:
        from ortpipe.graph.serial import write_whole
        from ortpipe.stages.evaluate.figures import figures

        artifact = event.artifact
        write_whole(artifact.model, self.folder)
        whole_file(self.folder / "losses.csv", losses_table(artifact))
        whole_file(
            self.folder / "metrics.json",
            json.dumps(artifact.facts.as_json().get("metrics", {}), indent=1) + "\n",
        )
        for name, png in figures(artifact).items():
            whole_file(self.folder / "figures" / f"{name}.png", png)
        timings: dict[str, Any] = {**self._timings, "total": event.seconds}
        whole_file(self.folder / "timings.json", json.dumps(timings, indent=1) + "\n")


def locked(event: StageFinished) -> dict[str, Any]:
    """Return a stage's part of the lock file: key and what it stands for, input and output, and where it came from."""
    return {
        "stage": event.name,
        "version": event.parts["version"],
        "key": event.key,
        "parts": event.parts,
        "input": event.given,
        "output": event.artifact.digest(),
        "hit": event.hit is not None,
        "from": None if event.hit is None else event.hit.run,
        "seconds": event.seconds,
    }


def losses_table(artifact: Artifact) -> str:
    """Return the losses, and what is watched, as CSV: a line per step, then per epoch (empty where not evaluated)."""
    import numpy as np

    tensors = artifact.tensors
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["kind", "number", "value", "rate"])
    rates = [repr(float(rate)) for rate in tensors.get("losses/rate", ())]
    for i, (loss, rate) in enumerate(itertools.zip_longest(tensors["losses/step"], rates, fillvalue=""), start=1):
        table.writerow(["step", i, repr(float(loss)), rate])
    epochs = {kind: tensors.get(f"losses/{kind}", ()) for kind in ("train", "validation")} | under("monitor", tensors)
    for kind, values in epochs.items():
        for i, value in enumerate(values, start=1):
            table.writerow([kind, i, "" if np.isnan(value) else repr(float(value)), ""])
    return text.getvalue()
