"""The common part of networks by config: inputs, labels and outputs that fit the training rows, and notes."""

import abc
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx_ir as ir

from ortpipe.data.rows import Data, Rows
from ortpipe.doors import later
from ortpipe.facts import Task
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.types import IR_VERSION, OPSET
from ortpipe.settings import Config, Count, Seed
from ortpipe.stages.convert.forward import Forward, Meaning
from ortpipe.stages.convert.sources.networks.layers import Law, Layers

if TYPE_CHECKING:
    from ortpipe.stages.convert.sources.networks.columns import table_inputs
    from ortpipe.stages.convert.sources.networks.labels import class_end, kind_of, need_rows, reject_text, with_outputs
else:
    later(__name__)


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
        return raw * op.like(self.scale, raw) + op.like(self.mean, raw)


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
        kind = kind_of(column, task, classes)
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


@dataclass(frozen=True)
class Network(Config, abc.ABC):
    """A network with random initial weights, whose outputs fit the labels of the training rows.

    Attributes:
        task: its kind of prediction; null: text, booleans and at most twenty different integers are classes, a table
            of 0 and 1 is one label per column, and other numbers are values; integers that may be either are an error.
        classes: of a classifier; null: those of the training rows.
        standardize: (x − mean) / deviation of the training rows, each by its weight, inside the graph.
        scale_target: a regression's last layer predicts (y − mean) / deviation, and the graph ends in the labels' own
            units; false for losses whose prediction is a logarithm (poisson, gamma, tweedie).
        outputs: number of raw outputs of a regression; null: one per label column. A run sets what its loss needs.
        intervals: number or ends of intervals of time, for times and events as labels; set likewise.
        weights: the distribution of the initial weights: see `Layers`.
        seed: of the initial weights; null: that of convert.
    """

    task: Task | None = field(default=None, kw_only=True)
    classes: tuple[int | str, ...] | None = field(default=None, kw_only=True)
    standardize: bool = field(default=True, kw_only=True)
    scale_target: bool = field(default=True, kw_only=True)
    outputs: Count | None = field(default=None, kw_only=True)
    intervals: Count | tuple[float, ...] | None = field(default=None, kw_only=True)
    weights: Law = field(default="pytorch", kw_only=True)
    seed: Seed | None = field(default=None, kw_only=True)

    @abc.abstractmethod
    def body(self, layers: Layers, rows: Rows, labels: LabelKind) -> ir.Value:
        """Write inputs and layers; return raw outputs [N, K], or [N, members, K] of an ensemble."""

    def end(self, op: Builder, raw: ir.Value, labels: LabelKind) -> Meaning:
        """Write the outputs, of which the prediction is the last one, behind raw ones; return their meaning."""
        if labels.task != "regression":
            return class_end(op, raw, labels)
        op.graph.outputs.append(op.rename(labels.in_units(op, raw), "prediction"))
        return Meaning(labels.task, None, levels=labels.levels)

    def __call__(self, data: Data | None, dtype: str) -> Forward:
        """Return the network with the inputs of the training rows, and outputs that fit their labels."""
        if data is None:
            need_rows()
        rows, name = data.train.sample(), type(self).__name__
        labels = read_labels(rows.label, self.task, rows.sample_weight, scaled=self.scale_target, classes=self.classes)
        if self.outputs or self.intervals:
            labels = with_outputs(labels, data, self.outputs, self.intervals, scaled=self.scale_target)
        graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name=name)
        op = Builder(graph, "forward")
        layers = Layers(op, np.dtype(dtype), self.seed or 0, self.weights)
        with op.formulas():
            meaning = self.end(op, self.body(layers, rows, labels), labels)
        parameters = {n: v for n, v in graph.initializers.items() if n not in layers.untrained}
        size = sum(v.const_value.size for v in parameters.values() if v.const_value is not None)
        about = f"{name}: {size:,} numbers in {len(parameters)} parameters, initialized with seed {self.seed or 0}"
        return Forward(
            ir.Model(graph, ir_version=IR_VERSION),
            prediction=str(graph.outputs[-1].name),
            origin=name,
            notes=(about, *layers.notes, *labels.notes),
            untrained_reasons={**dict.fromkeys(parameters), **layers.untrained},
            scaled=labels.scaled,
            meaning=meaning,
        )


@dataclass(frozen=True)
class TableNetwork(Network):
    """A network whose inputs are a table: one array of numbers, or columns.

    Attributes:
        impute: the replacement of a missing number, the `median` or `mean` of the training rows, with a 1 beside it.
        words: the form of a column of words: an `embedding`, a trained vector for each word, or a column of 0
            and 1 for each (`one_hot`); a word that the training rows do not hold is zeros.
        word_size: of the vectors; null: min(600, 1.6·n^0.56) for n words, fastai's rule.
    """

    impute: Literal["median", "mean"] = field(default="median", kw_only=True)
    words: Literal["embedding", "one_hot"] = field(default="embedding", kw_only=True)
    word_size: Count | None = field(default=None, kw_only=True)

    def inputs(self, layers: Layers, rows: Rows) -> ir.Value:
        """Write the inputs; return all of their features, [N, K]."""
        arrays = [*rows.inputs.values()]
        if rows.kept or len(arrays) > 1 or arrays[0].ndim != 2 or arrays[0].dtype.kind not in "biuf":
            return table_inputs(self, layers, rows)
        layers.notes += ["numbers are (x − mean) / deviation of the training rows"] if self.standardize else []
        return number_input(layers, next(iter(rows.inputs)), rows, standardize=self.standardize)


def number_input(layers: Layers, name: str, rows: Rows, *, standardize: bool) -> ir.Value:
    """Write an input of numbers [N, …], each standardized over the training rows."""
    array = rows.inputs[name]
    if array.dtype.kind not in "biuf":
        reject_text(name, array)
    x = layers.op.input(name, ir.DataType.from_numpy(layers.dtype), ["N", *array.shape[1:]])
    if not standardize:
        return x
    mean, scale = moments(array, rows.sample_weight)
    return (x - layers.const(mean)) / layers.const(scale)
