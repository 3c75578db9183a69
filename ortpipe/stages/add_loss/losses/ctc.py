"""Connectionist temporal classification: l = −log Σ p(π) over the paths π of T steps that collapse to the label."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import LossError
from ortpipe.graph.core.builder import Builder
from ortpipe.stages.add_loss.scores import LossConfig, Scores

NEVER = -1e30  # log 0, but finite, so that differences are never nan
HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True)
class CTC(LossConfig):
    """The loss of a label sequence that is shorter than the prediction's T steps [N, T, K] (Graves et al., 2006).

    It is `torch.nn.functional.ctc_loss` with all T steps as input length: with `add_loss.elements=mean` each row is
    divided by its number of labels, as by reduction="mean" there. A path collapses to the label by merging repeats and
    removing blanks. Labels are class indices [N, L]; the first blank or padding ends a row's label.

    With the label extended to b y₁ b y₂ … b, the paths that end at position s after step t have probability
    exp(αₜ(s)), αₜ(s) = log pₜ(s) + logsumexp(αₜ₋₁(s), αₜ₋₁(s − 1), αₜ₋₁(s − 2) if s is no blank and differs from
    s − 2), from α₀ = (0, −∞, …); l = −logsumexp(α_T(2L), α_T(2L − 1)).

    Attributes:
        blank: the index of the blank class; −1: the last class.
        zero_infinity: whether a label that T steps cannot produce has loss and gradient 0; else its loss is infinite,
            which stops training.
    """

    blank: int = 0
    zero_infinity: bool = False
    tasks = ("multiclass",)
    of_sequences = True

    def __call__(self, op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
        """Return the loss of each row [N, 1], of labels [N, L, 1] and scores [N, T, K]."""
        log_p: Any = self._log_p(op, scores)  # [N, T, K]
        dtype = scores.prediction.dtype
        extended, last = self._extended(op, label, scores)  # [N, S], S = 2L + 1, and its last position, [N, 1]
        steps, places = op.Shape(log_p, start=1, end=2), op.Shape(extended)
        rows, count = op.Gather(places, [0]), op.Gather(places, [1])
        index = op.Expand(op.Unsqueeze(extended, [1]), op.Concat(rows, steps, count, axis=0))
        emitted = op.Transpose(op.GatherElements(log_p, index, axis=2), perm=[1, 0, 2])  # [T, N, S]
        place = op.Range(0, op.Squeeze(count, [0]), 1)
        never, zero = op.like(NEVER, log_p), op.like(0, log_p)
        two_before = op.Pad(extended, [0, 2, 0, -2], op.like(-1, extended))
        blank = op.like(self.index(scores.classes or 0), extended)
        skips = op.And(op.Not(op.Equal(extended, blank)), op.Not(op.Equal(extended, two_before)))
        skip = op.Where(op.And(skips, op.Greater(place, 1)), zero, never)
        start = op.Expand(op.Where(op.Equal(place, 0), zero, never), places)
        end = self._steps(op, start, emitted, skip)
        ends = op.And(op.LessOrEqual(place, last), op.GreaterOrEqual(place, last - 1))
        loss = op.Neg(op.ReduceLogSumExp(end + op.Where(ends, zero, never), [1]))  # [N, 1]
        impossible = op.Greater(loss, op.like(-NEVER / 2, loss))
        loss = op.Where(impossible, op.like(0 if self.zero_infinity else np.inf, loss), loss)
        return op.Cast(loss, to=dtype) if dtype in HALVES else loss

    def lengths(self, op: Builder, label: ir.Value) -> Any:
        """Return each row's number of labels, int64 [N, 1], from the labels [N, L, 1] of `ended`."""
        return op.ReduceSum(op.Cast(op.GreaterOrEqual(label, op.like(0, label)), to=ir.DataType.INT64), [1], keepdims=0)

    def ended(self, op: Builder, label: ir.Value, scores: Scores) -> Any:
        """Return labels [N, L, 1] with −1 from the first blank or padding on."""
        blank, none = op.like(self.index(scores.classes or 0), label), op.like(-1, label)
        stops = op.Or(op.Less(label, op.like(0, label)), op.Equal(label, blank))
        stopped = op.CumSum(op.Cast(stops, to=ir.DataType.INT64), op.const(np.int64(1)))
        return op.Where(op.Greater(stopped, op.like(0, label)), none, label)

    def index(self, count: int) -> int:
        """Return the blank's index; raise LossError if it is not among `count` classes."""
        if not -1 <= self.blank < count:
            rule, fix = "{key} must be a class's index.", f"The model has {count} classes: set {{key}}=0, or -1."
            raise LossError(rule, key="loss.blank", got=self.blank, fix=fix)
        return self.blank % count

    def _log_p(self, op: Builder, scores: Scores) -> ir.Value:
        """Return log p [N, T, K], at least in float32, for T logarithms are added up."""
        value = scores.prediction if scores.logits is None else scores.logits
        if value.dtype in HALVES:
            value = op.Cast(value, to=ir.DataType.FLOAT)
        if scores.logits is not None:
            return op.LogSoftmax(value, axis=-1)
        return op.Log(op.Max(value, op.like(float(np.finfo(np.float32).tiny), value)))

    def _extended(self, op: Builder, label: Any, scores: Scores) -> tuple[Any, Any]:
        """Return the label with blanks between and around it [N, 2L + 1], and its last position [N, 1]."""
        blank, zero = op.like(self.index(scores.classes or 0), label), op.like(0, label)
        filled = op.Where(op.Less(label, zero), blank, label)
        pairs = op.Reshape(op.Concat(filled * 0 + blank, filled, axis=2), [0, -1])  # b y₁ b y₂ …
        return op.Pad(pairs, [0, 0, 0, 1], blank), self.lengths(op, label) * 2

    def _steps(self, op: Builder, start: Any, emitted: Any, skip: Any) -> Any:
        """Return α_T [N, S]: a Scan over the steps' log p [T, N, S]."""
        unknown = ir.Shape([None, None])
        before, log_p = op.placeholder("alpha", start, unknown), op.placeholder("log_p", start, unknown)
        body = ir.Graph([before, log_p], [], nodes=[], name="ctc/step")
        inner = Builder(body, "ctc", names=op._names)
        by_one, by_two = (inner.Pad(before, [0, by, 0, -by], op.like(NEVER, start)) for by in (1, 2))
        with inner.formulas():
            rows = [inner.Unsqueeze(value, [2]) for value in (before, by_one, by_two + skip)]
            after = inner.ReduceLogSumExp(inner.Concat(*rows, axis=2), [2], keepdims=0) + log_p
        after.type, after.shape = start.type, unknown
        body.outputs.append(after)
        end = op.Scan(start, emitted, body=body, num_scan_inputs=1)
        end.type, end.shape = start.type, unknown
        return end
