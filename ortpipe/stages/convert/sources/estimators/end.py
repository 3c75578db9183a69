"""A fitted estimator's arrays as parameters or constants, and the end of its graph: its prediction and labels."""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Task
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.origins import KEY, mark_attribute, take, within
from ortpipe.stages.convert.objective import Objective
from ortpipe.stages.convert.sources.outputs import two_columns, with_width

Step = Sequence[Any]  # see graph/core/origins.py
_MEMBERS: ContextVar[str] = ContextVar("members", default="")  # prefix of parameters' names
NO_FILE: dict[str, np.ndarray] = {}  # no initializers for steps to name


class End(NamedTuple):
    """The end of an estimator's graph before its outputs are named.

    A classifier without probabilities in scikit-learn predicts its scores, which are its logits too.
    """

    task: Task
    logits: ir.Value | None  # [N, K], or [N, 1] for two classes
    prediction: ir.Value  # values [N, K], probabilities [N, K], or the logits
    ranking: ir.Value | None = None  # the label is the class of its largest entry; None: of the prediction's
    objective: Objective | None = None
    notes: tuple[str, ...] = ()
    rounding: float = 0.0  # error of scikit-learn's own prediction

    @property
    def is_scores(self) -> bool:
        """Whether the prediction is raw scores."""
        return self.prediction is self.logits


def log_sigmoid(op: Builder, z: ir.Value) -> ir.Value:
    """Log σ(z) = (z − |z|)/2 − log(1 + exp(−|z|)), which never overflows."""
    size = op.Abs(z)
    return (z - size) * 0.5 - op.Log(op.Exp(-size) + 1)


def scores_end(op: Builder, scores: ir.Value, classes: Any, objective: Objective | None = None) -> End:
    """Return the end of a classifier that predicts raw scores, [N, 1] for two classes."""
    task: Task = "binary" if len(classes) == 2 else "multiclass"
    with_width(scores, 1 if task == "binary" else len(classes))
    return End(task, scores, scores, objective=objective)


def softmax_end(op: Builder, logits: ir.Value, classes: Any, objective: Objective | None = None) -> End:
    """Return the end of a classifier whose probabilities are the softmax of logits [N, classes]."""
    task: Task = "binary" if len(classes) == 2 else "multiclass"
    return End(task, with_width(logits, len(classes)), op.Softmax(logits, axis=-1), objective=objective)


def sigmoid_end(op: Builder, logits: ir.Value, objective: Objective | None = None) -> End:
    """Return the end of a classifier of two classes whose p is σ(z)."""
    return End("binary", with_width(logits, 1), two_columns(op, op.Sigmoid(logits)), objective=objective)


def source_values(estimator: Any, end: End, rows: Any) -> np.ndarray:
    """Return scikit-learn's prediction for rows, in the form of the graph's prediction."""
    if end.task == "regression":
        return np.asarray(estimator.predict(rows))
    values = estimator.decision_function(rows) if end.is_scores else estimator.predict_proba(rows)
    if isinstance(values, list):  # one [N, 2] for each label
        return np.stack([columns[:, 1] if columns.ndim == 2 else columns for columns in values], axis=1)
    return np.asarray(values)


def parameter(
    op: Builder,
    estimator: Any,
    name: str,
    attribute: str,
    *steps: Step,
    dtype: Any,
    index: int | None = None,
    also: Sequence[tuple[str, Sequence[Step]]] = (),
) -> ir.Value:
    """Return a parameter: an attribute's array after some steps, marked with its origin for `restore`.

    `also` are other attributes, each with its steps, that hold the same numbers.
    """
    array = array_of(estimator, attribute, index)
    value = op.parameter(
        f"{_MEMBERS.get()}{name}", np.ascontiguousarray(take(array, steps, NO_FILE.__getitem__).astype(dtype))
    )
    mark_attribute(value, attribute, *steps, index=index)
    if also:
        copies = [{"attribute": twin, "transform": [list(step) for step in way]} for twin, way in also]
        value.meta[KEY] |= {"also": copies}
    return value


def array_of(estimator: Any, attribute: str, index: int | None = None) -> np.ndarray:
    """Return an attribute as a dense array; with `index`, an entry of a list of arrays."""
    array = getattr(estimator, attribute)
    array = array if index is None else array[index]
    return np.asarray(array.toarray() if hasattr(array, "toarray") else array)


@contextlib.contextmanager
def member(op: Builder, name: str, *step: int | str) -> Iterator[None]:
    """Prefix the names of parameters created inside with a part's name: `name.coefficient`."""
    before = _MEMBERS.set(f"{_MEMBERS.get()}{name}.")
    try:
        with within(op.graph, *step):
            yield
    finally:
        _MEMBERS.reset(before)
