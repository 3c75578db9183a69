"""Checks of the terms that a user's own loss returns."""

from typing import Any

import onnx_ir as ir

from ortpipe import own
from ortpipe.errors import LossError
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.inference import infer
from ortpipe.stages.add_loss.losses import Loss, Scores


def check_terms(op: Builder, loss: Loss, scores: Scores, terms: Any) -> None:
    """Reject terms of a user's own loss that are no value of the graph, have another type, or are not of rows."""
    kind = type(loss)
    if not isinstance(terms, ir.Value) or terms.dtype not in (None, scores.prediction.dtype):
        rule = "A loss must return its terms, a value of the graph with the prediction's type."
        fix = "Write it with `op`, or with + − * / of label and scores.prediction; op.cast(x, like) changes a type."
        raise LossError(rule, got=f"{own.path_of(kind)} returned {terms!r:.200}", fix=fix)
    with own.blamed(kind, "loss", LossError):
        infer(ir.Model(op.graph, ir_version=10))
    if not getattr(loss, "of_sequences", False) and not _has_rows(terms, scores.prediction):
        raise LossError(
            "A loss must return terms for each row, with as many axes as the prediction, rows first.",
            got=f"{own.path_of(kind)} returned {terms.shape} for a prediction {scores.prediction.shape}",
            fix="Do not sum or average over rows (ortpipe does, with their weights); reduce with keepdims=1.",
        )


def _has_rows(terms: ir.Value, prediction: ir.Value) -> bool:
    """Return whether terms may be [N, …, K] for a prediction [N, …, C]; [N, N] means that a label lost an axis."""
    if terms.shape is None or prediction.shape is None:
        return True
    if len(terms.shape) != len(prediction.shape) or isinstance(terms.shape[0], int) != isinstance(
        prediction.shape[0], int
    ):
        return False
    rows, last = prediction.shape[0], terms.shape[-1]
    return isinstance(last, int) or last != rows or prediction.shape[-1] == rows
