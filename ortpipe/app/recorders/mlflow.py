"""Record to MLflow: config, graphs, tensors, losses, metrics, figures, environment, and a model that predicts."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortpipe.pipeline.flatten import flatten
from ortpipe.app.tracking.store import PARENT, SQLITE, open_store, reached
from ortpipe.pipeline.events import Event, Listener, RunFailed, RunFinished, RunStarted, StageFinished

if TYPE_CHECKING:
    from ortpipe.artifact import Artifact

BATCH = 1000  # points per call, MLflow's limit
LONGEST = 6000  # characters of a param value, MLflow's limit


@dataclass(frozen=True)
class Mlflow:
    """An MLflow run per job.

    Attributes:
        tracking_uri: `sqlite:///` and a path, a server's address, or any other that MLflow takes.
        experiment: its name; made when it is not there.
        artifacts: where a new experiment of a database keeps its artifacts; a server keeps its own.
    """

    tracking_uri: str
    experiment: str = "ortpipe"
    artifacts: str | None = None

    def __post_init__(self) -> None:
        if self.tracking_uri.startswith(SQLITE):
            database = Path(self.tracking_uri.removeprefix(SQLITE)).absolute()
            object.__setattr__(self, "tracking_uri", f"{SQLITE}{database}")

    def __call__(self, name: str, config: dict[str, Any], folder: Path, tags: dict[str, str]) -> Listener:
        """Open a run.

        Raises:
            TrackingError: the database or server cannot be reached.
        """
        return Recording(self, name, config, folder, tags)


class Recording:
    """One run's record; a failure while the run goes on is reported and stops nothing.

    Attributes:
        run_id: the MLflow run.
    """

    def __init__(self, target: Mlflow, name: str, config: dict[str, Any], folder: Path, tags: dict[str, str]) -> None:
        self._target, self._config, self._folder = target, config, folder
        self.failed = False
        self._client, experiment = open_store(target, parent=tags.get(PARENT))
        with reached(target.tracking_uri):
            created = self._client.create_run(experiment, run_name=name, tags=tags)
        self.run_id: str = created.info.run_id

    @property
    def summary(self) -> dict[str, str]:
        """What to tell the user: the run id and the command that opens the page."""
        uri = self._target.tracking_uri
        page = uri if uri.startswith("http") else f"mlflow ui --backend-store-uri {shlex.quote(uri)}"
        return {"MLflow run": self.run_id, "open the page": page}

    def __call__(self, event: Event) -> None:
        """Listen."""
        if isinstance(event, RunStarted):
            self._try(self._start)
        elif isinstance(event, StageFinished):
            self._try(lambda: self._stage(event))
        elif isinstance(event, RunFinished):
            self._try(lambda: self._finish(event.artifact))
            self._try(lambda: self._client.set_terminated(self.run_id, "FINISHED"))
        elif isinstance(event, RunFailed):
            self._try(lambda: self._client.set_tag(self.run_id, "ortpipe.error", str(event.error)[:LONGEST]))
            self._try(lambda: self._client.set_terminated(self.run_id, "KILLED" if event.killed else "FAILED"))

    def _try(self, record: Callable[[], None]) -> None:
        try:
            record()
        except Exception as error:  # noqa: BLE001 - tracking never kills training, whatever it raises
            if not self.failed:
                print(f"warning: MLflow did not record everything: {error}; the run folder does.", file=sys.stderr)
            self.failed = True

    def _start(self) -> None:
        from mlflow.entities import Param

        flat = {_key(k): str(v)[:LONGEST] for k, v in flatten(self._config).items()}
        params = [Param(k, v) for k, v in flat.items()]
        for first in range(0, len(params), 100):
            self._client.log_batch(self.run_id, params=params[first : first + 100])
        for file in ("config.yaml", "environment.json"):
            self._client.log_artifact(self.run_id, str(self._folder / file))

    def _stage(self, event: StageFinished) -> None:
        self._client.log_artifacts(
            self.run_id,
            str(self._folder / "stages" / f"{event.number}_{event.name}"),
            f"stages/{event.number}_{event.name}",
        )
        self._client.log_metric(self.run_id, f"seconds/{event.name}", event.seconds)

    def _finish(self, artifact: Artifact) -> None:
        self._log_metrics(artifact)
        for file in ("losses.csv", "metrics.json", "timings.json", "model.onnx"):
            self._client.log_artifact(self.run_id, str(self._folder / file))
        self._client.log_artifacts(self.run_id, str(self._folder / "figures"), "figures")
        self._log_model(artifact)

    def _log_metrics(self, artifact: Artifact) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        tables = {f"loss/{kind}": f"losses/{kind}" for kind in ("step", "train", "validation")}
        tables |= {name: name for name in artifact.tensors if name.startswith("monitor/")}
        points = [
            Metric(key, float(value), now, step)
            for key, name in tables.items()
            for step, value in enumerate(artifact.tensors.get(name, ()), start=1)
            if not math.isnan(value)
        ]
        points += [
            Metric(f"{state}/{name}", value, now, 0)
            for name, values in artifact.facts.metrics.items()
            for state, value in values.items()
        ]
        for first in range(0, len(points), BATCH):
            self._client.log_batch(self.run_id, metrics=points[first : first + BATCH])

    def _log_model(self, artifact: Artifact) -> None:
        import mlflow
        import mlflow.onnx
        from mlflow.models import infer_signature

        from ortpipe.runtime.session import Session

        mlflow.set_tracking_uri(self._target.tracking_uri)
        example = _example(artifact)
        session = Session(artifact.model)
        outputs = dict(zip(session.outputs, session.run(example), strict=True))
        with mlflow.start_run(run_id=self.run_id):
            mlflow.onnx.log_model(
                artifact.model,
                name="model",
                signature=infer_signature(example, outputs),
                input_example=example,
                pip_requirements=["onnx", "onnxruntime", "numpy"],
                onnx_execution_providers=["CPUExecutionProvider"],
            )


def _example(artifact: Artifact) -> dict[str, Any]:
    """Return two rows of zeros for every input; a dimension that is not known is 1."""
    import numpy as np
    from onnx import helper

    example = {}
    for value in artifact.model.graph.input:
        tensor = value.type.tensor_type
        shape = [2, *(d.dim_value or 1 for d in tensor.shape.dim[1:])]
        example[value.name] = np.zeros(shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return example


def _key(key: str) -> str:
    """Return a param key that MLflow takes: letters, digits and `_-. :/`, the rest as `_`."""
    return "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in key)[:250]
