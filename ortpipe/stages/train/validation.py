"""The validation rows, evaluated with the parameters of the moment: the loss, and a metric that is watched."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype

from ortpipe.artifact import Artifact, Facts
from ortpipe.data.feeds import feeds
from ortpipe.data.rows import Data, Rows
from ortpipe.data.stream import Stream
from ortpipe.errors import EvaluateError, TrainError
from ortpipe.graph.compose import extract
from ortpipe.graph.modes import for_inference
from ortpipe.metrics import METRICS, check_fits
from ortpipe.metrics.predictions import predicted, truth
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.stages.train.config import LOSS

MOST = 2**18  # rows of a stream that a metric is watched on
Arrays = Mapping[str, np.ndarray]


class Validation:
    """Evaluates one model on the validation rows, those of a stream piece by piece.

    Args:
        artifact: a gradient model with its forward outputs.
        rows: the validation rows.
        monitor: what is watched: `loss`, or a metric that is computed beside it, of a stream on up to MOST rows.
        runtime: threads.
    """

    def __init__(self, artifact: Artifact, rows: Rows | Stream, monitor: str, runtime: RuntimeConfig | None) -> None:
        self._artifact, self._rows, self._mean = artifact, rows, artifact.facts.reduction == "mean"
        self._metric = monitor if monitor != LOSS else None
        outputs = [artifact.facts.loss, artifact.facts.prediction if self._metric else None]
        model = for_inference(extract(artifact.model, [name for name in outputs if name is not None]))
        self._types = {i.name: tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in model.graph.input}
        self._held = [(rows, self._feed(rows))] if isinstance(rows, Rows) else None
        self._session = Session(model, runtime)

    def __call__(self, values: Arrays) -> dict[str, float]:
        """Return the loss per row, and the metric that is watched by its name, with these parameters."""
        own = {n: array.astype(self._types[n], copy=False) for n, array in values.items() if n in self._types}
        count, first, total, penalty = len(self._rows), True, 0.0, 0.0
        seen: list[tuple[np.ndarray, Rows]] = []
        every = -(-count // MOST) if self._held is None else 1
        for piece, arrays in self._held or ((p, self._feed(p)) for p in self._rows.pieces()):
            if first and self._held is None and not self._mean:
                total = penalty = self._penalty(arrays, own) / count  # once, whatever the pieces
            first = False
            loss, *prediction = self._session.run({**arrays, **own})
            total += float(loss) * (len(piece) / count) if self._mean else float(loss) / count - penalty
            if self._metric is not None:
                seen.append((prediction[0][::every], piece.take(np.arange(0, len(piece), every))))
        return {LOSS: total, **({self._metric: self._value(seen)} if self._metric is not None else {})}

    def _feed(self, rows: Rows) -> dict[str, np.ndarray]:
        return {k: v for k, v in feeds(self._artifact.model, self._artifact.facts, rows).items() if k in self._types}

    def _value(self, seen: list[tuple[np.ndarray, Rows]]) -> float:
        assert self._metric is not None
        facts, weights = self._artifact.facts, [w for _, rows in seen if (w := rows.sample_weight) is not None]
        label, probability = predicted(facts, np.concatenate([prediction for prediction, _ in seen]))
        truths = np.concatenate([truth(facts, rows) for _, rows in seen])
        return METRICS[self._metric](truths, label, probability, np.concatenate(weights) if weights else None)

    def _penalty(self, arrays: Arrays, own: Arrays) -> float:
        """Return what a loss adds to the sum over its rows: f(A) + f(B) − f(A ∪ B)."""
        half = len(next(iter(arrays.values()))) // 2
        cuts = [slice(half), slice(half, None), slice(None)] if half else []
        found = [self._session.run({**{n: a[cut] for n, a in arrays.items()}, **own})[0] for cut in cuts]
        return float(found[0] + found[1] - found[2]) if half else 0.0


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
    rows = rows.sample()
    label = truth(facts, rows)
    certain = np.eye(max(len(facts.classes or ()), 2))[label] if METRICS[name].reads == "probability" else None
    value = METRICS[name](label, label, certain, rows.sample_weight)
    if not np.isfinite(value):
        raise EvaluateError(
            "A metric that is watched must have a value on the validation rows.",
            got=f"{name} = {value}",
            fix="Give more validation rows, of every class (data.split.stratify=true), or watch another one.",
        )
