"""The labels of training rows: the task, the classes, and the scale of a network by config that fits them."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.doors import later
from ortpipe.facts import Task
from ortpipe.graph.core.builder import Builder

if TYPE_CHECKING:
    from ortpipe.stages.convert.sources.networks.class_labels import kind_of_labels
else:
    later(__name__)


class NetworkEnd(NamedTuple):
    """The values at a network's end."""

    prediction: ir.Value
    logits: ir.Value | None  # None: there are none
    members: ir.Value | None = None  # of an ensemble, [N, members, K]


@dataclass(frozen=True)
class LabelKind:
    """The task and scale of the training rows' labels."""

    task: Task
    width: int  # raw outputs
    classes: tuple[int | str, ...] | None = None
    mean: np.ndarray = field(default_factory=lambda: np.zeros(1))  # [width] of a regression
    scale: np.ndarray = field(default_factory=lambda: np.ones(1))  # likewise
    notes: tuple[str, ...] = ()
    levels: tuple[float, ...] = ()  # see `Facts.levels`

    @property
    def scaled(self) -> bool:
        """Whether the labels have another mean or deviation than raw outputs, 0 and 1."""
        return bool((self.scale != 1).any() or self.mean.any())

    def in_units(self, op: Builder, raw: ir.Value) -> ir.Value:
        """Return raw outputs of a regression in the labels' units."""
        if not self.scaled:
            return raw
        assert raw.dtype is not None
        scale, mean = (op.const(array.astype(raw.dtype.numpy())) for array in (self.scale, self.mean))
        return op.Add(op.Mul(raw, scale), mean)


def read_labels(
    label: np.ndarray,
    task: Task | None,
    weight: np.ndarray | None = None,
    *,
    scaled: bool = True,
    classes: tuple[int | str, ...] | None = None,
) -> LabelKind:
    """Return the kind of labels [N] or [N, K], inferred unless it is configured.

    >>> read_labels(np.array(["no", "yes", "no"]), None).task, read_labels(np.array([0.5, 2.0]), None).task
    ('binary', 'regression')
    """
    column = label.reshape(len(label)) if label.ndim == 2 and label.shape[1] == 1 else label
    numbers = column.dtype.kind in "biuf" and column.ndim < 3
    has_fractions = numbers and column.dtype.kind == "f" and bool((column % 1 != 0).any())
    if numbers and (task == "regression" or (has_fractions and task is None and classes is None)):
        kind = LabelKind("regression", 0)
    else:
        kind = kind_of_labels(column, task, classes)
    if kind.task != "regression":
        return kind
    values = column.reshape(len(column), -1).astype(np.float64)
    width = values.shape[1]
    mean, scale = moments(values, weight) if scaled else (np.zeros(width), np.ones(width))
    return replace(kind, width=width, mean=mean, scale=scale)


def moments(values: np.ndarray, weight: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return weighted mean and deviation over rows; the deviation of constant columns is 1."""
    values = values.astype(np.float64)
    mean = np.average(values, axis=0, weights=weight)
    deviation = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weight))
    return mean, np.where(deviation > 0, deviation, 1.0)
