"""Focal loss: l = −αₜ·(1 − pₜ)^γ·log pₜ, pₜ the probability of the true class."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt, Lt

from ortpipe.errors import LossError
from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.settings import NotNegative, Positive
from ortpipe.stages.add_loss.domains import ZERO_OR_ONE
from ortpipe.stages.add_loss.margins import logit, one_column, truth
from ortpipe.stages.add_loss.scores import LossConfig, Scores

Weight = Annotated[float, Gt(0), Lt(1)]


@dataclass(frozen=True)
class Focal(LossConfig):
    """Log loss or cross-entropy with smaller weights for rows of a surer prediction (Lin et al., 2017).

    For two classes and for several labels it is torchvision's `sigmoid_focal_loss`.

    Attributes:
        gamma: γ, the strength of that; 0 is the log loss.
        alpha: for two classes and for several labels the weight α of a label 1 (1 − α for a 0); for several classes one
            weight each, in the model's order; null: all weights are 1.
        eps: clips probabilities if the graph has no logits.
    """

    gamma: NotNegative = 2.0
    alpha: Weight | tuple[Positive, ...] | None = None
    eps: Annotated[float, Gt(0), Lt(0.5)] = 1e-6
    tasks = ("binary", "multiclass", "multilabel")
    labels = ZERO_OR_ONE  # of several labels

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return the loss [N, E…, 1], or [N, E…, K] for K labels."""
        exclusive = scores.classes is not None and scores.classes > 2
        self._check_alpha(scores.classes if exclusive else None)
        return self._of_classes(op, label, scores) if exclusive else self._of_two(op, label, scores)

    def _of_two(self, op: Builder, label: Value, scores: Scores) -> Any:
        y = op.cast(label, scores.prediction)
        sign = op.Sub(op.Mul(y, 2), 1)
        if scores.logits is not None:
            z = op.Mul(logit(op, scores, "focal"), sign)
            size = op.Abs(z)
            tail = op.Log(op.Add(op.Exp(op.Neg(size)), 1))  # log p = min(z, 0) − log(1 + exp(−|z|)), finite for any z
            log_p, log_not_p = (op.Sub(op.Mul(op.Sub(x, size), 0.5), tail) for x in (z, op.Neg(z)))
        else:
            p = one_column(op, scores.prediction, (0, 1), scores)
            p = op.Clip(op.Add(op.Mul(sign, p), op.Sub(1, y)), self.eps, 1 - self.eps)  # p for a label 1, 1 − p for a 0
            log_p, log_not_p = op.Log(p), op.Log(op.Sub(1, p))
        terms = op.Neg(op.Mul(op.Exp(op.Mul(log_not_p, self.gamma)), log_p))
        if self.alpha is None:
            return terms
        assert isinstance(self.alpha, float)
        return op.Mul(terms, op.Add(op.Mul(y, self.alpha), op.Mul(op.Sub(1, y), 1 - self.alpha)))  # no cancellation

    def _of_classes(self, op: Builder, label: Value, scores: Scores) -> Any:
        true_class = truth(op, label, scores)
        if scores.logits is not None:
            log_probabilities = op.LogSoftmax(scores.logits, axis=-1)
            probabilities = op.Exp(log_probabilities)
        else:
            probabilities = op.Clip(scores.prediction, self.eps, 1)
            log_probabilities = op.Log(probabilities)
        # 1 − p, without cancellation
        not_p = op.ReduceSum(op.Mul(probabilities, op.Sub(1, true_class)), [-1], keepdims=1)
        assert scores.prediction.dtype is not None
        tiny = float(np.finfo(scores.prediction.dtype.numpy()).tiny)
        weight = op.Pow(op.Max(not_p, tiny), self.gamma)  # at 0 a power below 1 has no derivative
        if self.alpha is not None:
            true_class = op.Mul(true_class, op.const(np.array(self.alpha, scores.prediction.dtype.numpy())))
        return op.Mul(weight, op.Neg(op.ReduceSum(op.Mul(log_probabilities, true_class), [-1], keepdims=1)))

    def _check_alpha(self, classes: int | None) -> None:
        weights = len(self.alpha) if isinstance(self.alpha, tuple) else None
        if self.alpha is None or weights == classes:
            return
        rule = "one weight, for the label 1" if classes is None else f"a weight for each of {classes} classes"
        rule = f"{{key}} must be {rule}."
        fix = "Set {key}=0.25." if classes is None else f"Set {{key}}=[{', '.join(['1'] * min(classes, 10))}]."
        raise LossError(rule, key="loss.alpha", got=self.alpha, fix=fix)
