"""The loss of validation rows, in memory or piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx

from ortpipe.artifact import Artifact
from ortpipe.data.feeds import feeds
from ortpipe.data.rows import Data, Rows
from ortpipe.graph.compose import extract
from ortpipe.graph.modes import for_inference
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session

Arrays = Mapping[str, np.ndarray]


def validation(artifact: Artifact, data: Data, runtime: RuntimeConfig | None) -> Callable[[Arrays], float] | None:
    """Return the function from parameters to the loss per validation row, if there are any rows."""
    if data.validation is None:
        return None
    facts, rows, mean = artifact.facts, data.validation, artifact.facts.reduction == "mean"
    assert facts.loss is not None
    model = for_inference(extract(artifact.model, [facts.loss]))
    taken = {i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in model.graph.input}
    session = Session(model, runtime)

    def feed(piece: Rows) -> Arrays:
        return {k: v for k, v in feeds(artifact.model, facts, piece).items() if k in taken}

    held = [(len(rows), feed(rows))] if isinstance(rows, Rows) else None

    def validate(values: Arrays) -> float:
        own = {name: array.astype(taken[name], copy=False) for name, array in values.items() if name in taken}

        def loss(arrays: Arrays) -> float:
            return float(session.run({**arrays, **own})[0])

        total = penalty = 0.0
        for number, (count, arrays) in enumerate(held or ((len(p), feed(p)) for p in rows.pieces())):
            if number == 0 and held is None and not mean:
                total = penalty = _penalty(loss, arrays) / len(rows)  # once, whatever the pieces
            total += loss(arrays) * (count / len(rows)) if mean else loss(arrays) / len(rows) - penalty
        return total

    return validate


def _penalty(loss: Callable[[Arrays], float], arrays: Arrays) -> float:
    """Return what a loss adds to the sum over its rows: f(A) + f(B) − f(A ∪ B)."""
    half = len(next(iter(arrays.values()))) // 2
    if not half:
        return 0.0
    parts = [{name: array[cut] for name, array in arrays.items()} for cut in (slice(half), slice(half, None))]
    return sum(map(loss, parts)) - loss(arrays)
