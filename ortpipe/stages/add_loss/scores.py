"""The base of losses, and the values that a loss compares with the label."""

from typing import Any, ClassVar, NamedTuple

from ortpipe.graph.core.formulas import DataType, Value
from ortpipe.settings import Config


class LossConfig(Config):
    """The base of ortpipe's losses, which are of a regression unless they name other tasks."""

    tasks: ClassVar[tuple[str, ...]] = ("regression",)


class Scores(NamedTuple):
    """The values that a loss compares with the label, [N, E…, 1] class indices or [N, E…, K] values.

    `prediction` [N, E…, K] holds values or probabilities of a row's elements E…, such as steps or pixels (none:
    [N, K]); `logits` have that shape, too (K = 1 for two classes), and are None if the graph has none; `classes` is the
    number of classes, None for a regression; `opposite` logits are a pair [−s, s] whose logit is s; labels of a
    regression have `label_columns`, by default K.
    """

    prediction: Value
    logits: Value | None
    classes: int | None
    opposite: bool = False
    inputs: tuple[Value, ...] = ()
    label_columns: int | None = None

    @property
    def dtype(self) -> DataType:
        """The prediction's type."""
        assert self.prediction.dtype is not None
        return self.prediction.dtype

    @property
    def sizes(self) -> list[Any]:
        """The prediction's sizes N, E…, K, each a number, a name or None; an unnamed N is named so."""
        assert self.prediction.shape is not None
        sizes = [d if isinstance(d, int) else d.value for d in self.prediction.shape]
        rows, *inner = [None if str(d).startswith("unk__") else d for d in sizes]  # a name from shape inference
        return ["N" if rows is None else rows, *inner]
