"""Quantile (pinball) loss: l = Σₖ max(qₖ·dₖ, (qₖ − 1)·dₖ) of dₖ = yₖ − ŷₖ."""

import itertools
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import onnx_ir as ir
from annotated_types import Gt, Lt

from ortpipe.errors import ConfigError
from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class Quantile(LossConfig):
    """The loss whose best constant is the quantile q (Koenker and Bassett, 1978), `mean_pinball_loss` of scikit-learn.

    Its derivative by ŷ is −q below the label, 1 − q above it, and their mean at it.

    With several quantiles, ŷ has a column for each, and y is one value. The trained model returns the columns of each
    row in ascending order, so that quantiles do not cross. Sorting never increases the loss (Chernozhukov,
    Fernández-Val and Galichon, 2010).

    Attributes:
        quantiles: q of each column in ascending order, or one for all columns of the label: 0.5 is the median.
    """

    quantiles: tuple[Annotated[float, Gt(0), Lt(1)], ...] = (0.5,)
    note = "the trained model returns the quantiles of each row in ascending order"

    def __post_init__(self) -> None:
        if not self.quantiles or any(a >= b for a, b in itertools.pairwise(self.quantiles)):
            rule, fix = "{key} must list quantiles in ascending order.", "Set {key}=[0.1,0.5,0.9], for example."
            raise ConfigError(rule, key="quantiles", got=list(self.quantiles), fix=fix)

    @property
    def link(self) -> str | None:
        """`quantiles` if there are several."""
        return "quantiles" if self.levels else None

    @property
    def levels(self) -> tuple[float, ...]:
        """The quantile of each column if there are several."""
        return self.quantiles if len(self.quantiles) > 1 else ()

    @property
    def network(self) -> dict[str, int]:
        """The settings that a network by config needs."""
        return {"outputs": len(self.levels)} if self.levels else {}

    @property
    def label_columns(self) -> int | None:
        """One label for several quantiles."""
        return 1 if self.levels else None

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return ½·|d| + (q − ½)·d [N, E…, K]."""
        difference = op.Sub(label, scores.prediction)
        tilt: Any = self.quantiles[0] - 0.5
        if self.levels:
            tilt = op.const(np.array(self.quantiles, scores.dtype.numpy()) - scores.dtype.numpy().type(0.5))
        return op.Add(op.Mul(op.Abs(difference), 0.5), op.Mul(difference, tilt))

    def predicts(self, op: Builder, raw: Value) -> Value:
        """Return the columns of each row [N, K] in ascending order; onnxruntime sorts float32 and float64."""
        wide = raw if raw.dtype == ir.DataType.DOUBLE else op.Cast(raw, to=ir.DataType.FLOAT)
        ordered, _ = op.TopK(wide, [len(self.quantiles)], axis=-1, largest=0, sorted=1, outputs=2)
        return op.cast(ordered, raw)
