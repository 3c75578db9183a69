"""Settings of a model that is read as a graph, whatever wrote it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from ortpipe.artifact import Task
from ortpipe.errors import ConvertError
from ortpipe.settings import Config
from ortpipe.stages.convert.prediction.meaning import OutputSettings

IN_INFERENCE = "is in inference mode, and is trained as after module.train()"  # a PyTorch module


@dataclass(frozen=True, kw_only=True)
class GraphSettings(Config, ABC):
    """Settings of a model that is read as a graph.

    Attributes:
        prediction: the float output to train, by name or index; by default the first one that depends on weights. Or
            a value inside the graph, by name: the graph then ends there.
        pair: for add_loss=info_nce, two embeddings [N, K], outputs or values inside the graph. The prediction is one
            after the other [N, 2·K]. Or one embedding, which the model computes for both inputs of a row, [N, 2, …].
        task: `regression`, `binary`, `multiclass` or `multilabel`; by default read off the graph
            and the values of real rows (a Softmax or Sigmoid at its end makes a classifier).
        scores: the kind of a classifier's prediction, `probabilities` or raw scores (`logits`); by default read off
            the graph and the values of real rows. Of two columns, the logit is the second less the first,
            and of opposite ones, [−s, s], the second.
        classes: the label of each class index; by default those of the model, else 0, 1, 2 …
        class_axis: the prediction's axis of classes or columns, such as 1 of images [N, K, H, W], or `none`: each
            number is its own prediction; by default that of its Softmax, else the last one, or 1 of images. Its other
            axes are the elements of a row, each with a label and a loss of its own: steps, pixels.
        heads: further outputs with labels and losses of their own (add_loss.heads), by name, each with its settings:
            task, scores, classes, class_axis, all of which are optional.
        lift: whether weights in Constant nodes, and those of branches, become initializers, which training can move:
            those that it would move by default if they were initializers, or names and globs of constants. In a file
            that ortpipe wrote, constants must not be trained, and stay.
        fixed: constant values of inputs that hold no data, by name: one number for all places, or a list of all.
        shape: sizes of inputs that the file leaves free, by name; null keeps a size.
        batch: for a file that takes one row, or a fixed number, at a time: rewrite it for any number of rows where that
            is verified to give the same results, else run it batch by batch (`auto`); or only one of these (`free`,
            `rows`). `rows` runs a file without a fixed number row by row.
        batch_axis: the axis of rows where it is not the first, for all inputs and outputs or by name; by default the
            one along which, in runs of real rows, rows do not depend on each other.
        quantized: of a quantized file, whose integer weights become floats, whether activations are still rounded to
            its integers (`fake`: gradients pass as if not, except for clipped values) or only clipped (`float`).
        dtype: float32 reads float16 and bfloat16 as float32, inputs and outputs too; by default types stay.
    """

    prediction: str | int | None = None
    pair: tuple[str, ...] = ()
    task: Task | None = None
    scores: Literal["logits", "probabilities"] | None = None
    classes: tuple[int | str, ...] | None = None
    class_axis: int | Literal["none"] | None = None
    heads: Mapping[str, OutputSettings] = field(default_factory=dict)
    lift: bool | tuple[str, ...] = True
    fixed: Mapping[str, Any] | None = None
    shape: Mapping[str, tuple[int | None, ...]] | None = None
    batch: Literal["auto", "free", "rows"] = "auto"
    batch_axis: int | Mapping[str, int] | None = None
    quantized: Literal["fake", "float"] = "fake"
    dtype: Literal["float32"] | None = None

    @property
    @abstractmethod
    def origin(self) -> str:
        """The source's name in messages."""


@dataclass(frozen=True, kw_only=True)
class Given(GraphSettings):
    """Settings of a model that is passed in Python: a ModelProto, the path of a file, a PyTorch module.

    Attributes:
        name: its name in messages; by default `model`, the file's path, or the module's class.

    >>> from ortpipe import ConvertConfig, Given
    >>> ConvertConfig(Given(task="multiclass")).source.task
    'multiclass'
    """

    name: str | None = None

    @property
    def origin(self) -> str:
        """Its name in messages."""
        return self.name or "model"

    def __call__(self, data: object, dtype: str) -> NoReturn:
        """Raise: settings are no source by themselves."""
        rule, fix = "Given describes a model that is passed to convert.", "Call convert(model, ConvertConfig(Given()))."
        raise ConvertError(rule, got="no model", fix=fix)
