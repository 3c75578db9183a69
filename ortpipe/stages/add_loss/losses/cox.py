"""Cox loss: lᵢ = −eᵢ·(ŷᵢ − log Σⱼ exp ŷⱼ) over the rows j of the batch with tⱼ ≥ tᵢ."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class Cox(LossConfig):
    """The negative partial log-likelihood of proportional hazards (Cox, 1972), with Breslow's form for equal times.

    Labels are a time t and an event e, 1 or 0 (censored). The prediction is the logarithm of the relative hazard: a row
    with a higher one has its event earlier.

    The risk set of a row is the part of its batch whose time is not below its own. The loss is exact only with all rows
    in one batch (`train/optimizer=lbfgs`, or a batch size of all rows). Smaller batches give another consistent
    estimate. A batch of B rows needs memory for B² numbers.

    Row weights are not supported.
    """

    link = "risk"
    label_columns = 2
    reads_batch = True

    @property
    def network(self) -> dict[str, Any]:
        """The settings that a network by config needs."""
        return {"outputs": 1, "scale_target": False}

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return the terms [N, E…, 1]."""
        time, event = op.Split(label, axis=-1, num_outputs=2, outputs=2)
        last = len(scores.sizes) - 1
        over_rows = [last, *range(1, last), 0]  # [1, E…, N]
        at_risk = op.LessOrEqual(time, op.Transpose(time, perm=over_rows))
        least = np.finfo(scores.dtype.numpy()).min
        others = op.Where(at_risk, op.Transpose(scores.prediction, perm=over_rows), op.like(least, scores.prediction))
        return op.Mul(event, op.Sub(op.ReduceLogSumExp(others, [last], keepdims=1), scores.prediction))
