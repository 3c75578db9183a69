"""A model on its way from a source to an artifact."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.facts import Facts
from ortpipe.graph.choice.choice import Choice
from ortpipe.graph.core import query
from ortpipe.graph.core.apart import Weights
from ortpipe.stages.convert.outputs.meaning import Meaning
from ortpipe.stages.convert.sources import Forward
from ortpipe.stages.convert.sources.estimators.objective import Objective


@dataclass(frozen=True)
class Converted:
    """A model and the results so far; each step of convert returns it with its own results and notes."""

    forward: Forward
    choice: Choice  # of weights to train
    facts: Facts
    record: Mapping[str, Any]  # of the lineage
    notes: Sequence[str]
    source_weights: Mapping[str, np.ndarray]  # to compare trained weights with
    unset: Sequence[str]  # weights that a file of initial weights must hold
    finished: tuple[onnx.ModelProto, Weights] | None  # the checked model; None: a step has changed it since
    objective: Objective | None
    predictions: Mapping[str, np.ndarray] = field(default_factory=dict)  # of real rows, by output
    meaning: Meaning | None = None
    heads: Mapping[str, Meaning] = field(default_factory=dict)

    def next(self, *notes: str, record: Mapping[str, Any] | None = None, **changes: Any) -> Converted:
        """Return the model after a step: with these notes, entries of the record, and changes."""
        record = {**self.record, **(record or {})}
        return dataclasses.replace(self, notes=(*self.notes, *notes), record=record, **changes)


def facts_of(graph: ir.Graph, prediction: str, choice: Choice, previous: Facts | None = None) -> Facts:
    """Return the facts of a graph; `previous` are the facts whose columns and categories its inputs keep."""
    inputs = tuple(str(v.name) for v in query.data_inputs(graph))
    return Facts(
        task="regression",  # replaced once the prediction's meaning is known
        inputs=inputs,
        outputs=tuple(str(o.name) for o in graph.outputs),
        prediction=prediction,
        parameters=choice.trained,
        constants=tuple(choice.untrained),
        columns={name: columns for name, columns in previous.columns.items() if name in inputs} if previous else {},
        categories=previous.categories if previous else {},
    )
