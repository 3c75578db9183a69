"""The common part of networks by config: inputs, labels and outputs that fit the training rows, and notes."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Task
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvertError, NoRowsError
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.types import IR_VERSION, OPSET
from ortpipe.settings import Config, Count, Seed
from ortpipe.stages.convert.forward import Forward, Meaning
from ortpipe.stages.convert.sources.estimators import End, plain_classes, two_columns, write_outputs
from ortpipe.stages.convert.sources.networks.columns import ColumnFeatures, Impute, features
from ortpipe.stages.convert.sources.networks.layers import Law, Layers, shape, with_type_of

FEW = 20  # up to so many different integers are classes


@dataclass(frozen=True)
class Network(Config, abc.ABC):
    """A network with random initial weights, whose outputs fit the labels of the training rows.

    Attributes:
        task: its kind of prediction; null: text, booleans and at most twenty different integers are classes, a table
            of 0 and 1 is one label per column, and other numbers are values.
        classes: of a classifier; null: those of the training rows.
        standardize: (x − mean) / deviation of the training rows, each by its weight, inside the graph.
        scale_target: a regression's last layer predicts (y − mean) / deviation, and the graph ends in the labels' own
            units; false for losses whose prediction is a logarithm (poisson, gamma, tweedie).
        weights: the distribution of the initial weights: see `Layers`.
        seed: of the initial weights; null: that of convert.
    """

    task: Task | None = field(default=None, kw_only=True)
    classes: tuple[int | str, ...] | None = field(default=None, kw_only=True)
    standardize: bool = field(default=True, kw_only=True)
    scale_target: bool = field(default=True, kw_only=True)
    weights: Law = field(default="pytorch", kw_only=True)
    seed: Seed | None = field(default=None, kw_only=True)

    @abc.abstractmethod
    def body(self, layers: Layers, rows: Rows, target: "LabelKind") -> ir.Value:
        """Write inputs and layers; return raw outputs [N, K], or [N, members, K] of an ensemble."""

    def __call__(self, data: Data | None, dtype: str) -> Forward:
        """Return the network with the inputs of the training rows, and outputs that fit their labels."""
        if data is None:
            rule = "A network by config needs training rows, for its sizes."
            raise NoRowsError(rule, got="no rows", fix="Give data.")
        rows = data.train.sample()
        weight = rows.sample_weight
        labels = read_labels(rows.label, self.task, weight, scaled=self.scale_target, classes=self.classes)
        name = type(self).__name__
        graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name=name)
        op = Builder(graph, "forward")
        layers = Layers(op, np.dtype(dtype), self.seed or 0, self.weights)
        outputs = self.body(layers, rows, labels)
        end, members = labels.end(op, outputs)
        if members is not None:
            op.rename(members, "members")
        write_outputs(op, end, labels.classes)
        meaning = Meaning(
            end.task,
            str(end.logits.name) if end.logits is not None else None,
            labels.classes,
            members=str(members.name) if members is not None else None,
        )
        parameters = {n: v for n, v in graph.initializers.items() if n not in layers.untrained}
        size = sum(v.const_value.size for v in parameters.values() if v.const_value is not None)
        return Forward(
            ir.Model(graph, ir_version=IR_VERSION),
            prediction=str(end.prediction.name),
            meaning=meaning,
            origin=name,
            notes=(
                f"{name}: {size:,} numbers in {len(parameters)} parameters, initialized with seed {self.seed or 0}",
                *layers.notes,
                *labels.notes,
            ),
            untrained_reasons={**dict.fromkeys(parameters), **layers.untrained},
            scaled=labels.scaled,
        )


@dataclass(frozen=True)
class TableNetwork(Network):
    """A network whose inputs are a table: one array of numbers, or raw columns (data.source.encode=keep).

    Attributes:
        impute: the replacement of a missing number, the `median` or `mean` of the training rows, with a 1 beside it.
        words: the form of a column of words: an `embedding`, a trained vector for each word, or a column of 0
            and 1 for each (`one_hot`); a word that the training rows do not hold is zeros.
        word_size: of the vectors; null: min(600, 1.6·n^0.56) for n words, fastai's rule.
    """

    impute: Impute = field(default="median", kw_only=True)
    words: Literal["embedding", "one_hot"] = field(default="embedding", kw_only=True)
    word_size: Count | None = field(default=None, kw_only=True)

    def features(self, layers: Layers, rows: Rows) -> ColumnFeatures:
        """Write the inputs, and the nodes that turn them into numbers and the codes of words."""
        if any(array.ndim > 2 for array in rows.inputs.values()):
            parts = [number_input(layers, name, rows, standardize=self.standardize) for name in rows.inputs]
            return ColumnFeatures(side_by_side(layers, [layers.flat(part) for part in parts]), ())
        columns = features(layers.op, rows, layers.dtype, impute=self.impute, standardize=self.standardize)
        layers.notes.extend(columns.notes)
        return columns

    def vectors(self, layers: Layers, columns: ColumnFeatures) -> list[ir.Value]:
        """Return the vectors [N, d] of each column of words; code 0 is that of an unknown word."""
        parts, op = list[ir.Value](), layers.op
        for name, codes in columns.words.items():
            count = columns.sizes[name]
            if self.words == "one_hot":
                table = layers.const(np.eye(count)[:, 1:])
            else:
                size = self.word_size or min(600, round(1.6 * (count - 1) ** 0.56))
                table = layers.embedding(f"embeddings.{name}.weight", count, size)
            parts.append(with_type_of(op.Gather(table, codes, axis=0), table, ["N", shape(table)[1]]))
        return parts


@dataclass(frozen=True)
class LabelKind:
    """The task and scale of the training rows' labels."""

    task: Task
    width: int  # raw outputs
    classes: tuple[int | str, ...] | None = None
    mean: np.ndarray = field(default_factory=lambda: np.zeros(1))  # [width] of a regression
    scale: np.ndarray = field(default_factory=lambda: np.ones(1))  # likewise
    notes: tuple[str, ...] = ()

    @property
    def scaled(self) -> bool:
        """Whether the labels have another mean or deviation than raw outputs, 0 and 1."""
        return bool((self.scale != 1).any() or self.mean.any())

    def end(self, op: Builder, raw: ir.Value) -> tuple[End, ir.Value | None]:
        """Return the end behind raw outputs, and the value of the members [N, members, K], if there are any.

        The prediction is the mean of the members' values or probabilities.
        """
        has_members = len(shape(raw)) == 3
        if self.task == "regression":
            assert raw.dtype is not None
            scale, mean = (op.const(array.astype(raw.dtype.numpy())) for array in (self.scale, self.mean))
            values = op.Add(op.Mul(raw, scale), mean) if self.scaled else raw
            y = op.ReduceMean(values, [1], keepdims=0) if has_members else values
            return End("regression", None, y), values if has_members else None
        p = op.Softmax(raw, axis=-1) if self.task == "multiclass" else op.Sigmoid(raw)
        p = op.ReduceMean(p, [1], keepdims=0) if has_members else p
        p = two_columns(op, p) if self.task == "binary" else p
        return End(self.task, None if has_members else raw, p), raw if has_members else None


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
    has_columns = label.ndim == 2 and label.shape[1] > 1
    column = label if has_columns else label.reshape(len(label)) if label.ndim == 2 else label
    if column.ndim > 2:
        raise ConvertError(
            "A network by config predicts one label, or a vector of them, for each row.",
            got=f"labels of shape {label.shape}",
            fix="Give an .onnx file for steps or pixels: convert=onnx.",
        )
    if classes is None:
        inferred, why = _task_of(column)
    else:
        inferred, why = ("binary" if len(classes) == 2 else "multiclass"), ""
    notes = () if task is not None or not why else (f"labels are {why}: a {inferred} model; {OVERRIDE}",)
    task = task or inferred
    if task == "multilabel":
        if column.dtype.kind not in "biuf":
            rule, fix = "Several labels of a row must be columns of 0 and 1.", "Leave {key} out, or give such columns."
            raise ConvertError(rule, key="task", got=f"labels of text, such as {str(column.flat[0])!r}", fix=fix)
        return LabelKind(task, column.shape[1] if has_columns else 1, notes=notes)
    if task == "regression":
        if column.dtype.kind not in "biuf":
            rule = "Labels of a regression must be numbers."
            raise ConvertError(
                rule, key="task", got=f"labels of {column.dtype}", fix="Leave {key} out: text is a class."
            )
        values = column.reshape(len(column), -1).astype(np.float64)
        mean, scale = moments(values, weight) if scaled else (np.zeros(values.shape[1]), np.ones(values.shape[1]))
        return LabelKind(task, values.shape[1], None, mean, scale, notes)
    if has_columns:
        rule = "A classifier's labels must be one class per row."
        raise ConvertError(
            rule, key="task", got=f"labels of shape {label.shape}", fix="Set {key}=multilabel or regression."
        )
    classes = classes or plain_classes(np.unique(np.array(column.tolist())))
    if len(classes) < 2 or (task == "binary" and len(classes) != 2):
        raise ConvertError(
            "A classifier must have two classes or more in the training rows, a binary one exactly two.",
            key="task",
            got=f"{len(classes)} in labels of a {task} model",
            fix="Set {key}=regression if they are values, or =multiclass.",
        )
    return LabelKind(task, 1 if task == "binary" else len(classes), classes, notes=notes)


OVERRIDE = "convert.source.task says otherwise"


def _task_of(label: np.ndarray) -> tuple[Task, str]:
    """Return the most likely task of labels [N] or [N, K], and if that is a guess, the evidence."""
    if label.ndim == 2:
        if np.isin(label, (0, 1)).all():
            return "multilabel", "columns of 0 and 1"
        return "regression", ""
    if label.dtype.kind == "f":
        first_values = np.unique(label)[: FEW + 1]
        are_integers = len(first_values) <= FEW and (first_values == np.trunc(first_values)).all()
        return "regression", f"{len(first_values)} whole numbers, written as 1.0" if are_integers else ""
    values = np.unique(np.array(label.tolist()))
    if values.dtype.kind in "iu" and len(values) > FEW:
        return "regression", f"{len(values)} whole numbers"
    note = f"{len(values)} whole numbers" if values.dtype.kind in "iu" else ""
    return ("binary" if len(values) == 2 else "multiclass"), note


def moments(values: np.ndarray, weight: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return weighted mean and deviation over rows; the deviation of constant columns is 1."""
    values = values.astype(np.float64)
    mean = np.average(values, axis=0, weights=weight)
    deviation = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weight))
    return mean, np.where(deviation > 0, deviation, 1.0)


def side_by_side(layers: Layers, parts: Sequence[ir.Value]) -> ir.Value:
    """Concatenate values [N, …] to [N, K]."""
    if len(parts) == 1:
        return parts[0]
    return with_type_of(layers.op.Concat(*parts, axis=1), parts[0], ["N", sum(shape(part)[1] for part in parts)])


def number_input(layers: Layers, name: str, rows: Rows, *, standardize: bool) -> ir.Value:
    """Write an input of numbers [N, …], each standardized over the training rows."""
    array = rows.inputs[name]
    if array.dtype.kind not in "biuf":
        raise ConvertError(
            "The inputs of this network must be numbers.",
            got=f"input {name!r} of {array.dtype}",
            fix="Encode text: {@data.source.encode}=one_hot.",
        )
    x = layers.op.input(name, ir.DataType.from_numpy(layers.dtype), ["N", *array.shape[1:]])
    if not standardize:
        return x
    mean, scale = moments(array, rows.sample_weight)
    return layers.op.Div(layers.op.Sub(x, layers.const(mean)), layers.const(scale))


def only_input(rows: Rows, noun: str) -> tuple[str, np.ndarray]:
    """Return the single input of a network of images or sequences."""
    if len(rows.inputs) != 1:
        actual, fix = f"inputs {', '.join(rows.inputs)}", "Give one array."
        raise ConvertError(f"A network of {noun} must have one input.", got=actual, fix=fix)
    [(name, array)] = rows.inputs.items()
    return name, array
