"""The meaning of a prediction: the only one of all that the graph, real rows and the labels allow."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ortpipe.artifact import Task
from ortpipe.errors import ConvertError, NoRowsError
from ortpipe.metrics.classes import Seen, look
from ortpipe.metrics.elements import classes_last
from ortpipe.settings import Config
from ortpipe.stages.convert.forward import Meaning
from ortpipe.stages.convert.prediction.heads import Head

Form = Literal["logits", "probabilities"]
Reading = tuple[Task, Form | None]
READINGS: dict[Reading, str] = {
    ("binary", "probabilities"): "probabilities of two classes",
    ("binary", "logits"): "raw scores of two classes",
    ("multiclass", "probabilities"): "probabilities, one class per label",
    ("multiclass", "logits"): "raw scores, one class per label",
    ("multilabel", "probabilities"): "probabilities, each column a label of its own",
    ("multilabel", "logits"): "raw scores, each column a label of its own",
    ("regression", None): "plain values",
}
FITTING = {"softmax": ("multiclass", "binary"), "sigmoid": ("multilabel", "binary"), "pair": ("binary",)}
BOUNDS = {  # by the last operators
    "sum": "its operators make each row sum to 1",
    "unit": "its operators keep them in [0, 1]",
    "outside": "no softmax or sigmoid bounds them",
}
SEEN = {
    None: "there are no rows to look at",
    "sum": "values in [0, 1], and each row sums to 1",
    "unit": "values in [0, 1], but not every row sums to 1",
    "outside": "values outside [0, 1]",
}
SHOWN_LABELS = 5  # labels that a message shows
IGNORED = -100  # the label of steps to ignore in PyTorch and Hugging Face; add_loss asks for its setting


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
    declared: Sequence[int | None] | None  # its shape as far as the graph declares it
    labelled: bool  # the model also has an output of labels
    head: Head  # the activation at its end
    settings: OutputSettings  # explicit settings; they win unless the evidence contradicts them
    rows: np.ndarray | None  # the prediction of real rows, if there are any
    is_head: bool = False  # a further output of the model
    labels: np.ndarray | None = None  # labels of the training rows, all or distinct, if known
    label_shape: tuple[int, ...] = ()  # of one row's label

    def meaning(self) -> Meaning:
        """Return the only meaning that the evidence allows; raise an error that names every open setting."""
        if self._shape == []:  # one number for all rows, such as a loss
            return Meaning("regression", None)
        forms: Sequence[Form] = [self.settings.scores] if self.settings.scores else ["probabilities", "logits"]
        allowed = [(task, form) for task in self._tasks() for form in ([None] if task == "regression" else forms)]
        passed = [reading for reading in allowed if self._against(*reading) is None]
        if len(passed) != 1:
            raise self._open(passed) if passed else self._contradiction(allowed[0])
        [(task, form)] = passed
        if form is not None and self._is_text and self.settings.classes is None:
            raise self._open(passed)
        return self._described(task, form)

    def _described(self, task: Task, form: Form | None) -> Meaning:
        """Return a reading as a meaning, with its logits, classes and notes."""
        axis, kind, notes, width = self._axis, self.head.kind, self._axis_notes(), self.width
        if task == "regression":
            return Meaning(task, None, notes=notes, class_axis=axis)
        count = 2 if task == "binary" else width if task == "multiclass" else None
        classes = self.settings.classes or (None if count is None else tuple(range(count)))
        self._check_classes(classes, count)
        logits, opposite, certain = self.name, None, self.head.bound == "outside"
        if form == "probabilities":
            certain = kind is not None and task in FITTING.get(kind, ())
            logits = self.head.logits.name if certain and self.head.logits is not None else None  # type: ignore[assignment]
        elif task == "binary":
            opposite = kind == "opposite" or None
        if not certain and self.settings.scores is None:
            notes = (self._note(str(form), task), *notes)
        return Meaning(task, logits, classes, opposite, notes, axis)

    def _tasks(self) -> Sequence[Task]:
        """Return the tasks that the settings, the graph, the file's labels, the values or the rows' labels suggest."""
        kind, width, bound, labels = self.head.kind, self.width, self.head.bound, self._labels_are
        if self.settings.task is not None:
            return [self.settings.task]
        if kind == "sigmoid" and width != 1:
            return ["multilabel"]
        is_pair = kind in ("pair", "opposite") or (
            width == 2 and self.labelled and kind not in ("softmax", "log_softmax")
        )
        exclusive: Task = "binary" if is_pair or width == 1 else "multiclass"
        if self.labelled or self.settings.scores or kind or labels == "classes" or "sum" in (bound, self._seen):
            return [exclusive]
        several: Task = exclusive if width == 1 else "multilabel"
        if bound == "unit" and labels != "values":
            return [several] if labels == "0 or 1" else [several, "regression"]
        return [several, "regression"] if labels == "0 or 1" and self._distinct.dtype.kind != "f" else ["regression"]

    def _against(self, task: Task, form: Form | None, *, by_name: bool = True) -> str | None:
        """Return the evidence against a reading; `by_name`: so are the output's name, and labels beside shares."""
        head, width, seen, is_open = self.head, self.width, self._seen, self.settings.scores is None
        exclusive, logits, shares = task in ("binary", "multiclass"), form == "logits", form == "probabilities"
        is_told, count = self.settings.task is not None, len(self._distinct)
        is_share = by_name and not is_told and head.bound in ("sum", "unit")
        by_name = by_name and is_open and "prob" in self.name.lower() and head.kind != "log_softmax"
        beyond = not self._is_text and ((self._distinct < 0) | (self._distinct > 1)).any()
        reasons = {
            f"{width} columns": task == "binary" and (width or 0) > 2,
            "1 column": task == "multiclass" and width == 1,
            f"labels such as {self._fraction}": exclusive and self._fraction is not None,
            "labels outside [0, 1]": task == "regression" and is_share and beyond,
            f"{count} labels": task == "binary" and not is_told and count > 2,
            "one label per row": task == "multilabel" and not is_told and self._labels_are == "classes",
            SEEN[seen]: (shares and seen == "outside")
            or (shares and exclusive and width != 1 and seen == "unit" and head.bound != "sum")
            or (logits and is_open and head.bound is None and seen == "sum"),
            "the end of the graph is a softmax or sigmoid": logits and is_open and head.bound in ("sum", "unit"),
            "the values have any size": shares and is_open and head.bound == "outside" and seen != "sum",
            "the logarithm of a sigmoid": logits and head.kind == "log_sigmoid",
            "two opposite scores [−s, s]": logits and head.kind == "opposite" and task != "binary",
            f"{self._evidence}, in an output named like probabilities": logits and by_name,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    @functools.cached_property
    def _distinct(self) -> np.ndarray:
        """The distinct labels of the training rows; none if they are unknown."""
        labels = np.zeros(0) if self.labels is None else self.labels
        return np.unique(np.array(labels.ravel().tolist()) if labels.dtype == object else labels)

    @property
    def _is_text(self) -> bool:
        return self._distinct.dtype.kind not in "iufb"

    @property
    def _fraction(self) -> float | None:
        """A label that is no whole number, if there is one."""
        labels = self._distinct if self._distinct.dtype.kind == "f" else np.zeros(0)
        return next(iter(labels[labels != np.floor(labels)].tolist()), None)

    @functools.cached_property
    def _labels_are(self) -> Literal["classes", "0 or 1", "values"] | None:
        """Return the kind of the training rows' labels for a prediction of this shape; None: unknown."""
        labels, width = self._distinct, self.width or 1
        if self.label_shape and not self._is_text:
            labels = labels[labels != IGNORED]
        if not len(labels):
            return None
        elements = [d for axis, d in enumerate(self._shape or ()) if axis not in (0, self._axis or 1)]
        one_per_element = len(without_ones(elements)) == len(without_ones(self.label_shape))
        if self._is_text or (one_per_element and width > 1 < len(labels) and np.isin(labels, np.arange(width)).all()):
            return "classes"
        return "0 or 1" if len(labels) == 2 and (labels == (0, 1)).all() else "values"

    @functools.cached_property
    def _shape(self) -> list[int | None] | None:
        """The shape: that of a run, with the declared rows, else as declared."""
        if self.rows is None:
            return None if self.declared is None else [*self.declared]
        return [*(self.declared or [None])[:1], *self.rows.shape[1:]] if self.rows.ndim else []

    @functools.cached_property
    def _seen(self) -> Seen | None:
        return None if self.rows is None else look(classes_last(self.rows, self._axis))

    @functools.cached_property
    def _axis(self) -> int | None:
        """The axis of classes or columns; None: the last one of [N, K]."""
        class_axis, rank = self.settings.class_axis, 2 if self._shape is None else len(self._shape)
        if class_axis is None:
            return None if rank == 2 else self._likely_axis(rank) if self.head.axis is None else self.head.axis
        axis = rank if class_axis == "none" else class_axis % rank if -rank < class_axis < rank else 0
        if axis < 1:
            raise ConvertError(
                "{key} must be an axis of the prediction after that of the rows, or none.",
                key="class_axis",
                got=f"{class_axis} for output {self.name!r} of shape {self._sizes}",
                fix="Leave it out if the graph ends in a Softmax; set none if each number is its own prediction.",
            )
        return None if (axis, rank) == (1, 2) else axis

    def _likely_axis(self, rank: int) -> int:
        """Return the most likely axis of classes; the rank if each number is a prediction of its own.

        With one label per row, it is the only one of more than one entry, as of [N, K, 1, 1]. Else it is the last one
        or, as in images [N, K, H, W], the first after the rows: the one of size 1, else of as many entries as classes,
        else of known size; otherwise the first one in four dimensions and more, else the last.
        """
        if rank == 1:
            return 1
        sizes = [None] * rank if self.declared is None or len(self.declared) != rank else self.declared
        wide = [axis for axis, size in enumerate(sizes) if axis and size != 1]
        size, is_binary = sizes[wide[0]] if len(wide) == 1 else None, self.settings.task == "binary"
        if rank > 3 and size and (size == 2 or not is_binary) and not without_ones(self.label_shape):
            return wide[0]
        class_count = 2 if is_binary else len(self.settings.classes or ()) or None
        for matches in (lambda d: d == 1, lambda d: d == class_count is not None, lambda d: d is not None):
            match [axis for axis in (1, rank - 1) if matches(sizes[axis])]:
                case [axis]:
                    return axis
        if is_binary and 1 not in (sizes[1], sizes[-1]):
            return rank
        return 1 if rank > 3 else rank - 1

    def _axis_notes(self) -> tuple[str, ...]:
        """Return a note if the axis of classes or columns is a guess."""
        rank = len(self._shape or ())
        if rank < 3 or self.settings.class_axis is not None or self.head.axis is not None:
            return ()
        where = "on no axis: each number stands alone" if self._axis == rank else f"along axis {self._axis}"
        return (
            f"the classes (or columns) of output {self.name!r} of shape {self._sizes} are taken to lie {where}; if "
            f"they do not, set {self._at}class_axis",
        )

    @property
    def width(self) -> int | None:
        """The number of classes or columns, if known."""
        shape, axis = self._shape, -1 if self._axis is None else self._axis
        return None if not shape else 1 if axis == len(shape) else shape[axis]

    @property
    def _at(self) -> str:
        return f"convert.source.heads.{self.name}." if self.is_head else "convert.source."

    @property
    def _sizes(self) -> str:
        return f"[{', '.join('?' if d is None else str(d) for d in self._shape or ())}]"

    def _check_classes(self, classes: tuple[int | str, ...] | None, count: int | None) -> None:
        if len({*(classes or ())}) < len(classes or ()):
            got = f"{', '.join(map(str, classes or ()))} for output {self.name!r}"
            raise ConvertError("Class labels must be distinct.", got=got, fix="Correct {at}classes.")
        if classes is not None and count is not None and len(classes) != count:
            raise ConvertError(
                "A classifier must have one class for each column of its prediction (two for a single column).",
                got=f"{len(classes)} classes, {self.width} columns in output {self.name!r}",
                fix=f"List {count} labels in {{at}}classes.",
            )

    def _contradiction(self, reading: Reading) -> ConvertError:
        """Return the error for a reading that is impossible, with the readings that are possible for any settings."""
        possible = [other for other in READINGS if self._against(*other, by_name=False) is None]
        possible = [other for other in possible if other[0] != "multilabel" or self.width != 1]
        return self._open(possible, f"{self._against(*reading)}, which excludes {READINGS[reading]} ({reading[0]})")

    def _open(self, readings: Sequence[Reading], why: str | None = None) -> ConvertError:
        """Return the error that names every open setting, with the values to choose from."""
        head, ways = self.head, [f"{self._as_settings(*reading)} ({READINGS[reading]})" for reading in readings]
        if head.logits is not None and (head.kind == "log_sigmoid" or (head.kind == "sigmoid" and self.width != 1)):
            task = "binary" if self.width == 1 else "multiclass"
            scores = f"{{at}}prediction={head.logits.name} {{at}}task={task} {{at}}scores=logits"
            ways.append(f"{scores} (raw scores in front of the sigmoid)")
        ways += ["a float value inside of the graph, or another output, as {at}prediction"] * (not self.is_head)
        ways += ["{at}class_axis=none if each number has a label of its own"] * (len(self._shape or ()) > 2)
        no_rows = self.rows is None
        return (NoRowsError if no_rows else ConvertError)(
            "It must be certain whether a prediction holds values, probabilities or raw scores, and for which task.",
            key="task" if self.settings.task is None else "scores",
            got=f"output {self.name!r} of shape {self._sizes}: {why or self._evidence}",
            fix=f"Set {'; or '.join(ways)}{'; or give rows, which tell' if no_rows else ''}.",
        )

    def _as_settings(self, task: Task, form: Form | None) -> str:
        settings = self.settings
        words = [f"{{at}}task={task}"] if task != settings.task else []
        if form not in (None, settings.scores):
            words.append(f"{{at}}scores={form}")
        if form is not None and self._is_text and settings.classes is None:
            words.append("{at}classes=[…] in the order of the columns")
        return " ".join(words or [f"{{at}}task={task}"])

    @property
    def _evidence(self) -> str:
        parts = [self._values]
        if self.head.bound is not None:
            parts.append(BOUNDS[self.head.bound])
        if len(self._distinct):
            first = ", ".join(map(repr, self._distinct[:SHOWN_LABELS].tolist()))
            parts.append(f"the labels are {first}{' …' if len(self._distinct) > SHOWN_LABELS else ''}")
        return "; ".join(parts)

    @property
    def _values(self) -> str:
        return SEEN[self._seen].partition(", and")[0] if self.width == 1 else SEEN[self._seen]

    def _note(self, form: str, task: Task) -> str:
        losses = "the loss reads them, for no logits are behind them" if form == "probabilities" else "raw scores"
        alternative = "logits" if form == "probabilities" else "probabilities"
        return (
            f"output {self.name!r} ({self._values}) is taken as {form} of a {task} model ({losses}); if it is "
            f"not, set {self._at}scores={alternative} or {self._at}task"
        )


def without_ones(sizes: Sequence[int | None]) -> list[int | None]:
    """Return the sizes that are not 1."""
    return [d for d in sizes if d != 1]
