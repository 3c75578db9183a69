"""ONNX's own losses: their function bodies are differentiable too, but their gradients take three times as long."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortpipe.stages.derive.backward import Backward, Gradients, ranked
from ortpipe.stages.derive.rules.activations import integer


class Weighed:
    """What each target counts: its class's weight, 0 where it is ignored, and the gradient that it gets."""

    def __init__(self, op: Backward, node: ir.Node, dy: ir.Value) -> None:
        x, target = node.inputs[:2]
        weights = (*node.inputs, None)[2]
        assert x is not None and target is not None
        self.op, self.x, self.rank, self.loss = op, x, ranked(x).rank(), node.outputs[0]
        self.mean = "reduction" not in node.attributes or node.attributes["reduction"].as_string() == "mean"
        kept = None
        if "ignore_index" in node.attributes:
            ignored = op.const(np.array(integer(node, "ignore_index", 0), (target.dtype or ir.DataType.INT64).numpy()))
            kept = op.Not(op.Equal(target, ignored))
        line = op.Range(op.const(np.int64(0)), op.dim(x, 1), op.const(np.int64(1)))
        column = op.Reshape(line, op.ints([-1 if i == 1 else 1 for i in range(self.rank)]))
        hot = op.Equal(op.Unsqueeze(op.Cast(target, to=ir.DataType.INT64), op.ints([1])), column)
        self.kept = op.Unsqueeze(kept, op.ints([1])) if kept is not None else None
        self.hot = op.cast(op.And(hot, self.kept) if self.kept is not None else hot, x)
        self.counts = self._counts(weights)
        whole = op.full(dy, self.loss) if dy.shape is None or dy.shape.rank() else dy
        wide = op.Unsqueeze(whole, op.ints([1])) if self.loss.shape is None or self.loss.shape.rank() else whole
        self.share = op.Div(wide, op.ReduceSum(self.counts, keepdims=0)) if self.mean else wide

    def _counts(self, weights: ir.Value | None) -> ir.Value:
        """Return each target's weight [N, 1, …]."""
        op = self.op
        if weights is not None:
            shaped = op.Reshape(weights, op.ints([-1 if i == 1 else 1 for i in range(self.rank)]))
            return op.ReduceSum(op.Mul(self.hot, shaped), op.ints([1]), keepdims=1)
        return op.ReduceSum(self.hot, op.ints([1]), keepdims=1)

    def to_weights(self, log_p: ir.Value) -> ir.Value:
        """Return Σ lᵢ over the targets of a class; of a mean, Σ (lᵢ − loss) / Σ w."""
        op = self.op
        own = op.Neg(op.ReduceSum(op.Mul(self.hot, log_p), op.ints([1]), keepdims=1))
        apart = op.Sub(own, self.loss) if self.mean else own
        axes = [i for i in range(self.rank) if i != 1]
        return op.ReduceSum(op.Mul(self.hot, op.Mul(apart, self.share)), op.ints(axes), keepdims=0)


def softmax_cross_entropy(
    op: Backward, node: ir.Node, dy: ir.Value | None, d_log_p: ir.Value | None = None
) -> Gradients:
    """l = −w[t] · log softmax(x)[t]: dx = (softmax(x) − [k = t]) · w[t] · dl, over Σ w of a mean."""
    x, weights = node.inputs[0], (*node.inputs, None)[2]
    rest: list[ir.Value | None] = [None] * (len(node.inputs) - 1)
    log_p = _log_softmax(op, node)
    p = op.Exp(log_p)
    total = []
    if dy is not None:
        weighed = Weighed(op, node, dy)
        total.append(op.Mul(op.Sub(p, weighed.hot), op.Mul(weighed.counts, weighed.share)))
        if weights is not None:
            rest[1] = _as(weighed.to_weights(log_p), weights)
    if d_log_p is not None:
        whole = op.full(d_log_p, log_p)
        total.append(op.Sub(whole, op.Mul(p, op.ReduceSum(whole, op.ints([1]), keepdims=1))))
    return [_as(op.Add(*total) if len(total) == 2 else total[0], x), *rest]


def _log_softmax(op: Backward, node: ir.Node) -> ir.Value:
    """Return the loss's second output, asked for where the forward does not."""
    if len(node.outputs) < 2:
        node.resize_outputs(2)
    log_p, x = node.outputs[1], node.inputs[0]
    assert x is not None
    if not log_p.name:
        op.rename(log_p, f"{node.outputs[0].name}/log_softmax")
    return _as(log_p, x)


def negative_log_likelihood(op: Backward, node: ir.Node, dy: ir.Value) -> Gradients:
    """l = −w[t] · x[t]: dx = −[k = t] · w[t] · dl, over Σ w of a mean."""
    x, weights = node.inputs[0], (*node.inputs, None)[2]
    assert x is not None
    weighed = Weighed(op, node, dy)
    rest: list[ir.Value | None] = [None] * (len(node.inputs) - 1)
    if weights is not None:
        rest[1] = _as(weighed.to_weights(x), weights)
    return [_as(op.Neg(op.Mul(weighed.hot, op.Mul(weighed.counts, weighed.share))), x), *rest]


def _as(gradient: ir.Value, x: ir.Value | None) -> ir.Value:
    if x is not None:
        gradient.type, gradient.shape = x.type, x.shape
    return gradient


RULES = {
    "NegativeLogLikelihoodLoss": negative_log_likelihood,
    "SoftmaxCrossEntropyLoss": softmax_cross_entropy,
}
