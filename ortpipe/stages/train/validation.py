"""Evaluate the validation rows with the current parameters: the loss, and the monitored metric."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Arrays, Artifact, Facts
from ortpipe.data.feeds import Feed
from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import EvaluateError, TrainError
from ortpipe.graph.forms.modes import to_inference
from ortpipe.metrics import METRICS, head_and_metric
from ortpipe.metrics.named import check_fits
from ortpipe.metrics.predictions import compared, rows_at_most, truth
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.stages.train.config import LOSS

KEPT = 200_000  # the most rows that a metric is computed on, evenly spaced
Piece = tuple[int, Arrays, np.ndarray | None, np.ndarray | None]  # rows, feeds, labels, weights


class Validation:
    """Evaluates a gradient model on the validation rows, piece by piece; rows in memory are read once."""

    def __init__(
        self, artifact: Artifact, rows: RowSet, monitor: str, runtime: RuntimeConfig | None, feed: Feed
    ) -> None:
        self._feed, self._facts, self._rows, self._count = feed, artifact.facts, rows, len(rows)
        self._metric = monitor if monitor != LOSS else None
        self._head = head_and_metric(monitor)[0]  # the head whose prediction the metric measures
        self._watched = artifact.facts.predictions[self._head]
        outputs = [artifact.facts.loss, self._watched.prediction if self._metric else None]
        model = artifact.ir_model([name for name in outputs if name is not None])
        to_inference(model)
        self._types = input_types(model)
        self._every = -(-self._count // min(KEPT, rows_at_most(self._watched, rows.of(self._head))))
        self._session = Session(model, runtime)
        self._held = None if rows.on_disk else list(self._pieces())

    def __call__(self, values: Arrays) -> dict[str, float]:
        """Return the loss per row, and the monitored metric by its name if there is one, with these parameters."""
        parameters = {n: array.astype(self._types[n], copy=False) for n, array in values.items() if n in self._types}
        pieces = self._held or self._pieces()
        mean, seen, total, penalty = self._facts.reduction == "mean", 0, 0.0, 0.0
        sampled: list[tuple[np.ndarray, ...]] = []
        for count, fed, label, weight in pieces:
            if not (seen or mean or count == self._count):
                total = penalty = self._penalty(fed, parameters)  # counts once, regardless of the pieces
            loss, *prediction = self._session.run({**fed, **parameters})
            total += float(loss) * (count / self._count) if mean else float(loss) / self._count - penalty
            if self._metric is not None:
                cut = slice(-seen % self._every, None, self._every)
                sampled.append(tuple(array[cut] for array in (label, *prediction, weight) if array is not None))
            seen += count
        metrics = {LOSS: total}
        if self._metric is not None:
            truths, predictions, *weights = (np.concatenate(arrays) for arrays in zip(*sampled, strict=True))
            entries = compared(self._watched, truths, predictions, weights[0] if weights else None)
            metrics[self._metric] = METRICS[self._metric](*entries)
        return metrics

    def _pieces(self) -> Iterator[Piece]:
        """Yield the rows in pieces that fit in memory with the values that the model computes from them."""
        for piece in self._rows.pieces():
            size = self._session.rows_at_once(self._feed(piece.head(1)))
            yield from (self._read(piece.take(slice(at, at + size))) for at in range(0, len(piece), size))

    def _read(self, rows: Rows) -> Piece:
        fed = {k: v for k, v in self._feed(rows).items() if k in self._types}
        label = truth(self._watched, rows.of(self._head).label) if self._metric else None
        return len(rows), fed, label, rows.sample_weight

    def _penalty(self, fed: Arrays, parameters: Arrays) -> float:
        """Return the part of the loss that is no sum over rows, f(A) + f(B) − f(A ∪ B), divided by all rows."""
        if not (half := len(next(iter(fed.values()))) // 2):
            return 0.0
        cuts = (slice(half), slice(half, None), slice(None))
        a, b, together = (
            float(self._session.run({**{k: v[cut] for k, v in fed.items()}, **parameters})[0]) for cut in cuts
        )
        return (a + b - together) / self._count


def input_types(model: ir.Model) -> dict[str, np.dtype]:
    """Return the type of every input, by name."""
    return {str(value.name): value.dtype.numpy() for value in model.graph.inputs if value.dtype is not None}


def check_monitor(name: str, facts: Facts, data: Data) -> None:
    """Raise if a monitored metric has no validation rows, does not fit the task or has no value on these rows."""
    if data.validation is None:
        fix = f"Set {{@data.split.validation}}=0.1, or {{at}}early_stop.monitor={LOSS}."
        raise TrainError("A monitored metric needs validation rows.", got=f"{name} without validation rows", fix=fix)
    check_fits(name, facts, "early_stop.monitor")
    head, _ = head_and_metric(name)
    facts, rows = facts.predictions[head], data.validation.of(head).sample()
    label = truth(facts, rows.label)
    if facts.class_axis is not None or facts.link not in (None, "log"):  # the first pass shows whether it has a value
        return
    certain = None
    if METRICS[name].reads == "probability":
        certain = label if facts.task == "multilabel" else np.eye(max(len(facts.classes or ()), 2))[label]
    predictions = np.abs(label) + 1 if facts.task == "regression" else label  # deviances need positive predictions
    value = METRICS[name](label, predictions, certain, rows.sample_weight)
    if not np.isfinite(value):
        raise EvaluateError(
            "A monitored metric must have a value on the validation rows.",
            got=f"{name} = {value}",
            fix="Give more validation rows, of every class ({@data.split.stratify}=true), or monitor another one.",
        )
