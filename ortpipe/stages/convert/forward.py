"""A model on its way from a source to an artifact."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.facts import Facts, Task
from ortpipe.graph.core import query
from ortpipe.graph.core.protos import Weights
from ortpipe.graph.core.selection import Choice


@dataclass(frozen=True)
class Meaning:
    """The task, logits and classes of a prediction."""

    task: Task
    logits: str | None  # name of the value whose softmax or sigmoid gives the probabilities, if any
    classes: tuple[int | str, ...] | None = None  # the label of each class index
    opposite: bool | None = None  # the columns are [−s, s]: the logit is s, half of their difference
    notes: tuple[str, ...] = ()  # assumptions that the user should know
    class_axis: int | None = None  # see `Facts.class_axis`
    members: str | None = None  # see `Facts.members`
    levels: tuple[float, ...] = ()  # see `Facts.levels`

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that a model has of its prediction."""
        return {name: value for name, value in vars(self).items() if name != "notes"}


@dataclass(frozen=True)
class Forward:
    """A source's model: a network that ortpipe writes; `Imported` is a model that others made."""

    model: ir.Model  # the graph in standard operators
    prediction: str  # the output that losses and metrics read
    origin: str  # the source's name in messages
    notes: tuple[str, ...] = ()  # changes and assumptions, for the user
    untrained_reasons: Mapping[str, str | None] = field(default_factory=dict)  # of float initializers; None: trained
    scaled: bool = False  # the prediction is scaled to mean and deviation of the labels
    meaning: Meaning | None = None  # None: read off the graph and the predictions of real rows
    loss: Mapping[str, Any] | None = None  # of add_loss=auto, if it is not the usual one of the task


@dataclass(frozen=True)
class Converted:
    """A model and the results so far; each step of convert returns it with its own results and notes."""

    forward: Forward
    choice: Choice  # of weights to train
    facts: Facts
    record: Mapping[str, Any]  # of the lineage
    notes: Sequence[str]
    unset: Sequence[str]  # weights that a file of initial weights must hold
    finished: tuple[onnx.ModelProto, Weights] | None  # the checked model; None: a step has changed it since
    meaning: Meaning | None = None
    source_weights: Mapping[str, np.ndarray] = field(default_factory=dict)  # to compare trained weights with
    heads: Mapping[str, Meaning] = field(default_factory=dict)
    objective: Any = None  # of a fitted estimator: see objective.py

    def next(self, *notes: str, record: Mapping[str, Any] | None = None, **changes: Any) -> Converted:
        """Return the model after a step: with these notes, entries of the record, and changes."""
        record = {**self.record, **(record or {})}
        return dataclasses.replace(self, notes=(*self.notes, *notes), record=record, **changes)


def facts_of(graph: ir.Graph, prediction: str, choice: Choice) -> Facts:
    """Return the facts of a graph."""
    return Facts(
        task="regression",  # replaced once the prediction's meaning is known
        inputs=tuple(str(v.name) for v in query.data_inputs(graph)),
        outputs=tuple(str(o.name) for o in graph.outputs),
        prediction=prediction,
        parameters=choice.trained,
        constants=tuple(choice.untrained),
    )
