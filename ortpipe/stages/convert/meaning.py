"""The meaning of a prediction (values, probabilities or raw scores), inferred from the graph and from real rows."""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ortpipe.artifact import Task
from ortpipe.errors import ConvertError, NoRowsError
from ortpipe.metrics.predictions import Seen, classes_last, look
from ortpipe.settings import Config
from ortpipe.stages.convert.heads import Head

Form = Literal["logits", "probabilities"]
FEW = 5  # labels that a message shows
FITTING = {"softmax": ("multiclass", "binary"), "sigmoid": ("multilabel", "binary"), "pair": ("binary",)}


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


@dataclass(frozen=True)
class OutputSettings(Config):
    """Settings of an output, from the config or from a file that ortpipe wrote; null: inferred from the graph.

    Attributes:
        task: `regression`, `binary`, `multiclass` or `multilabel`.
        scores: `probabilities` or raw scores (`logits`).
        classes: the label of each class index.
        class_axis: the axis of classes or columns.
    """

    task: Task | None = None
    scores: Form | None = None
    classes: tuple[int | str, ...] | None = None
    class_axis: int | Literal["none"] | None = None


@dataclass(frozen=True)
class Prediction:
    """A float output, and the evidence of its meaning."""

    name: str
    shape: Sequence[int | None] | None  # as far as the graph tells it
    labelled: bool  # the model also has an output of labels
    head: Head  # the activation at its end, read off the graph
    settings: OutputSettings  # explicit settings; they win unless the evidence contradicts them
    rows: np.ndarray | None  # the prediction of real rows, if there are any
    is_head: bool = False  # a further output of the model
    labels: np.ndarray | None = None  # labels of the training rows, all or distinct, if known

    def meaning(self) -> Meaning:
        """Return the prediction's meaning; reject evidence that is ambiguous or contradicts itself or the settings."""
        meaning = self._meaning()
        return dataclasses.replace(meaning, class_axis=self._axis, notes=(*meaning.notes, *self._axis_notes()))

    def _meaning(self) -> Meaning:
        form = self.settings.scores or self._form()
        task = self.settings.task or self._task(form)
        if task == "regression":
            return Meaning(task, None)
        width = self.width if self.width is not None or self._columns is None else self._columns.shape[-1]
        count = 2 if task == "binary" else width if task == "multiclass" else None
        classes = self.settings.classes or (None if count is None else tuple(range(count)))
        self._check_width(task, classes)
        if form is None:
            raise self._doubt("and its last operators do not tell which")
        if form == "probabilities":
            self._check_probabilities(task)
            logits = self.head.logits if self.head.kind and task in FITTING.get(self.head.kind, ()) else None
            notes = () if logits is not None or self.settings.scores else (self._note(form, task),)
            return Meaning(task, str(logits.name) if logits is not None else None, classes, notes=notes)
        self._check_scores(task)
        opposite = None
        if task == "binary" and self.width == 2:
            rows = self._columns  # zeros, as of a new layer, prove nothing
            columns_are_opposite = rows is not None and rows.any() and (rows[..., 0] == -rows[..., 1]).all()
            opposite = bool(columns_are_opposite) or self.head.kind == "opposite" or None
        notes = () if self.settings.scores or self.head.linear else (self._note(form, task),)
        return Meaning(task, self.name, classes, opposite, notes)

    @functools.cached_property
    def _value_range(self) -> Seen | None:
        return None if self._columns is None else look(self._columns)

    @functools.cached_property
    def _columns(self) -> np.ndarray | None:
        """The prediction of real rows [N, E…, K]."""
        return None if self.rows is None else classes_last(self.rows, self._axis)

    @functools.cached_property
    def _axis(self) -> int | None:
        """The axis of classes or columns; None: the last one of [N, K]."""
        class_axis, shape = self.settings.class_axis, self.shape if self.rows is None else self.rows.shape
        rank = 2 if shape is None else len(shape)
        if class_axis is not None:
            axis = rank if class_axis == "none" else class_axis % rank if -rank < class_axis < rank else 0
            if axis < 1:
                raise ConvertError(
                    "{key} must be an axis of the prediction after that of the rows, or none.",
                    key="class_axis",
                    got=f"{class_axis} for output {self.name!r} of shape {self._sizes}",
                    fix="Leave it out if the graph ends in a Softmax; set none if each number is its own prediction.",
                )
            return None if (axis, rank) == (1, 2) else axis
        if rank == 2:
            return None
        return self._likely_axis(rank) if self.head.axis is None else self.head.axis

    def _likely_axis(self, rank: int) -> int:
        """Return the most likely axis of classes; the rank if each number is a prediction of its own.

        It is the last one or, as in images [N, K, H, W], the first after the rows: the one of size 1, else of as many
        entries as classes, else of known size; otherwise the first one in four dimensions and more, else the last.
        """
        if rank == 1:
            return 1
        sizes = [None] * rank if self.shape is None else self.shape
        class_count = 2 if self.settings.task == "binary" else len(self.settings.classes or ()) or None
        for matches in (lambda d: d == 1, lambda d: d == class_count is not None, lambda d: d is not None):
            match [axis for axis in (1, rank - 1) if matches(sizes[axis])]:
                case [axis]:
                    return axis
        if self.settings.task == "binary" and 1 not in (sizes[1], sizes[-1]):
            return rank
        return 1 if rank > 3 else rank - 1

    def _axis_notes(self) -> tuple[str, ...]:
        """Return a note if the axis of classes or columns is a guess."""
        shape = self.shape if self.rows is None else self.rows.shape
        if (
            shape is None
            or len(shape) < 3
            or self._axis is None
            or not self.settings.class_axis is self.head.axis is None
        ):
            return ()
        where = "on no axis: each number stands alone" if self._axis == len(shape) else f"along axis {self._axis}"
        return (
            f"the classes (or columns) of output {self.name!r} of shape {self._sizes} are taken to lie {where}; if "
            f"they do not, set {self._at}class_axis",
        )

    @property
    def width(self) -> int | None:
        """The number of classes or columns, if known."""
        shape, axis = self.shape, -1 if self._axis is None else self._axis
        return None if not shape else 1 if axis == len(shape) else shape[axis]

    @property
    def _at(self) -> str:
        return f"convert.source.heads.{self.name}." if self.is_head else "convert.source."

    @property
    def _another(self) -> str:
        return "leave out the head" if self.is_head else "choose another output with {at}prediction"

    @property
    def _sizes(self) -> str:
        shape = self.shape if self.shape is not None else ["N", *self.rows.shape[1:]] if self.rows is not None else []
        return f"[{', '.join('?' if d is None else str(d) for d in shape)}]"

    def _form(self) -> Form | None:
        """Return the form of the values, from the graph and the rows; None: unknown."""
        head = self.head
        if head.bound is not None:
            return "probabilities"
        if head.kind == "log_softmax" or self._value_range == "outside":
            return "logits"
        if self._value_range == "sum":
            if head.linear and self.settings.task != "regression":
                raise self._doubt("but it comes straight from a product with weights")
            return "probabilities"
        if head.linear:
            return "logits"
        return "probabilities" if self._is_called_probabilities and self._value_range is not None else None

    def _task(self, form: Form | None) -> Task:
        head = self.head
        if head.kind in ("softmax", "log_softmax"):
            return "multiclass"
        if head.kind == "sigmoid":
            return "binary" if self.width == 1 else "multilabel"
        if head.kind == "pair":
            return "binary"
        if self.labelled:
            return "binary" if self.width in (1, 2) else "multiclass"
        if self.settings.scores is not None:
            return "binary" if self.width == 1 else "multiclass"
        if form != "probabilities" or (head.bound is None and self._value_range != "sum"):
            self._check_labels()
            return "regression"
        if "sum" in (head.bound, self._value_range):
            return "multiclass"
        if self.width == 1:
            return "binary"
        raise ConvertError(
            "It must be certain whether the columns of a prediction are classes, labels or values.",
            got=f"output {self.name!r}: {self._values}, made by a softmax or sigmoid",
            fix="Set {at}task=multilabel if each column is a label of its own, =multiclass if they exclude "
            "each other, =regression if they are plain values.",
        )

    def _check_labels(self) -> None:
        """Reject labels that are most likely classes if nothing in the graph tells that it predicts classes."""
        labels = self.labels
        if labels is None or labels.dtype.kind == "f" or (labels.ndim > 1 and labels.shape[1:] != (1,)):
            return
        distinct, count = np.unique(np.array(labels.ravel().tolist())), max(2, self.width or 1)
        if distinct.dtype.kind in "iub" and (distinct[0] < 0 or distinct[-1] >= count or len(distinct) < 2):
            return
        first = ", ".join(map(repr, distinct[:FEW].tolist()))
        task = "binary" if count == 2 else "multiclass"
        raise ConvertError(
            "It must be certain whether labels are classes or values.",
            key="task",
            got=f"labels {first}{' …' if len(distinct) > FEW else ''} for output {self.name!r} of shape {self._sizes}",
            fix=f"Set {{key}}={task} if they are classes (a text is one: list them in {{at}}classes, as the columns "
            "stand), =regression if they are values.",
        )

    def _check_width(self, task: Task, classes: tuple[int | str, ...] | None) -> None:
        if len({*(classes or ())}) < len(classes or ()):
            raise ConvertError(
                "Class labels must be distinct.",
                got=f"{', '.join(str(name) for name in classes or ())} for output {self.name!r}",
                fix="Correct {at}classes.",
            )
        if self.width is None or task == "multilabel":
            return
        if (task == "binary" and self.width > 2) or (task == "multiclass" and self.width == 1):
            raise ConvertError(
                "A binary model must predict one or two columns, a multiclass model one for each class.",
                got=f"{self.width} in output {self.name!r} of a {task} model",
                fix=f"Correct {{at}}task, {self._another}, or set {{at}}class_axis=none where each "
                "number is a label of its own, as of steps.",
            )
        columns = 2 if task == "binary" else self.width
        if classes is not None and len(classes) != columns:
            raise ConvertError(
                "A classifier must have one class for each column of its prediction (two for a single column).",
                got=f"{len(classes)} classes, {self.width} columns in output {self.name!r}",
                fix=f"List {columns} labels in {{at}}classes.",
            )

    def _check_probabilities(self, task: Task) -> None:
        """Reject values outside [0, 1], and mutually exclusive classes whose probabilities do not sum to 1."""
        exclusive = self.head.bound != "sum" and (task == "multiclass" or (task == "binary" and self.width == 2))
        if self._value_range == "outside" or (self._value_range == "unit" and exclusive):
            hint = "{at}task=multilabel if each column is a label of its own, " if self._value_range == "unit" else ""
            raise ConvertError(
                "Probabilities lie in [0, 1], and those of classes that exclude each other sum to 1 in each row.",
                got=f"output {self.name!r} of a {task} model: {self._values}",
                fix=f"Set {hint}{{at}}scores=logits if it holds raw scores, or {self._another}.",
            )

    def _check_scores(self, task: Task) -> None:
        """Reject raw scores of an output named like probabilities, and those that are no logits of the task."""
        if self.head.kind == "log_sigmoid":
            raise ConvertError(
                "Logarithms of probabilities are scores only where the probabilities of a row sum to 1.",
                got=f"output {self.name!r}: the logarithm of a sigmoid",
                fix="End the graph in front of the logarithm: name the value there with {at}prediction.",
            )
        if self.head.kind == "opposite" and task != "binary":
            rule = "Two opposite scores [−s, s] belong to one binary label."
            raise ConvertError(rule, got=f"output {self.name!r} of a {task} model", fix="Set {at}task=binary.")
        if self.settings.scores is None and self._is_called_probabilities:
            evidence = (
                "come straight from a product with weights" if self._value_range is None else "lie outside [0, 1]"
            )
            raise ConvertError(
                "An output named like probabilities must hold probabilities.",
                got=f"output {self.name!r}: its values {evidence}, as those of hinge losses do",
                fix="Set {at}scores=logits to train them as raw scores, or name probabilities with {at}prediction.",
            )

    @property
    def _is_called_probabilities(self) -> bool:
        return "prob" in self.name.lower()

    def _doubt(self, why: str) -> ConvertError:
        return (NoRowsError if self._value_range is None else ConvertError)(
            "It must be certain whether a prediction holds probabilities or raw scores.",
            got=f"output {self.name!r}: {self._values}, {why}",
            fix="Set {at}scores=probabilities or {at}scores=logits (raw scores); if it holds "
            f"plain values, {{at}}task=regression{'; or give rows, which tell' if self._value_range is None else ''}.",
        )

    @property
    def _values(self) -> str:
        if self._value_range is None:
            return "there are no rows to look at"
        if self._value_range == "outside":
            return "values outside [0, 1]"
        sums = {"sum": ", and each row sums to 1", "unit": ", but not every row sums to 1"}[self._value_range]
        return f"values in [0, 1]{sums if self.width != 1 else ''}"

    def _note(self, form: Form, task: Task) -> str:
        losses = "the loss reads them, for no logits are behind them" if form == "probabilities" else "raw scores"
        alternative = "logits" if form == "probabilities" else "probabilities"
        return (
            f"output {self.name!r} ({self._values}) is taken as {form} of a {task} model ({losses}); if it is "
            f"not, set {self._at}scores={alternative} or {self._at}task"
        )
