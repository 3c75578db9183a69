"""The validation rows, evaluated with the parameters of the moment: the loss, and a metric that is watched."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype

from ortpipe.artifact import Artifact, Facts
from ortpipe.data.feeds import feeds
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import EvaluateError, TrainError
from ortpipe.graph.compose import extract
from ortpipe.graph.modes import for_inference
from ortpipe.metrics import METRICS, check_fits
from ortpipe.metrics.predictions import predicted, truth
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.stages.train.config import LOSS


class Validation:
    """Evaluates one model on the validation rows.

    Args:
        artifact: a gradient model with its forward outputs.
        rows: the validation rows.
        monitor: what is watched: `loss`, or a metric that is computed beside it.
        runtime: threads.
    """

    def __init__(self, artifact: Artifact, rows: Rows, monitor: str, runtime: RuntimeConfig | None) -> None:
        self._facts, self._weight, self._count = artifact.facts, rows.sample_weight, len(rows)
        self._metric = monitor if monitor != LOSS else None
        self._truth = truth(artifact.facts, rows) if self._metric else None
        outputs = [artifact.facts.loss, artifact.facts.prediction if self._metric else None]
        model = for_inference(extract(artifact.model, [name for name in outputs if name is not None]))
        self._types = {i.name: tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in model.graph.input}
        self._rows = {k: v for k, v in feeds(artifact.model, artifact.facts, rows).items() if k in self._types}
        self._session = Session(model, runtime)

    def __call__(self, values: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the loss per row, and the metric that is watched by its name, with these parameters."""
        own = {n: array.astype(self._types[n], copy=False) for n, array in values.items() if n in self._types}
        loss, *prediction = self._session.run({**self._rows, **own})
        found = {LOSS: float(loss) / (1 if self._facts.reduction == "mean" else self._count)}
        if self._metric is not None:
            assert self._truth is not None
            label, probability = predicted(self._facts, prediction[0])
            found[self._metric] = METRICS[self._metric](self._truth, label, probability, self._weight)
        return found


def check_monitor(name: str, facts: Facts, data: Data) -> None:
    """Refuse to watch a metric without validation rows, that does not fit the task, or that has no value on the rows.

    Raises:
        EvaluateError, TrainError: as above.
    """
    if name == LOSS:
        return
    rows = data.validation
    if rows is None:
        fix = f"Set data.split.validation=0.1, or train.early_stop.monitor={LOSS}."
        raise TrainError("A metric is watched on validation rows.", got=f"{name} without validation rows", fix=fix)
    check_fits(name, facts.task)
    label = truth(facts, rows)
    certain = np.eye(max(len(facts.classes or ()), 2))[label] if METRICS[name].reads == "probability" else None
    value = METRICS[name](label, label, certain, rows.sample_weight)
    if not np.isfinite(value):
        raise EvaluateError(
            "A metric that is watched must have a value on the validation rows.",
            got=f"{name} = {value}",
            fix="Give more validation rows, of every class (data.split.stratify=true), or watch another one.",
        )
