"""ONNX's own losses: differentiating their function bodies also works, but takes three times as long."""

import numpy as np
import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules, ranked


class Weighed:
    """Weights and gradient of each target: its class's weight, 0 if it is ignored."""

    def __init__(self, op: Backward, node: Node, dy: Value, x: Value, target: Value, weights: Value | None) -> None:
        self.op, self.rank, self.loss = op, ranked(x).rank(), node.outputs[0]
        self.mean = node.attributes.get_string("reduction", "mean") == "mean"
        column = [-1 if i == 1 else 1 for i in range(self.rank)]
        ignored, counted = node.attributes.get_int("ignore_index", None), None
        if ignored is not None:
            counted = op.Not(op.Equal(target, op.const(np.array(ignored, (target.dtype or ir.DataType.INT64).numpy()))))
        classes = op.Reshape(op.Range(0, op.dim(x, 1), 1), column)
        hot = op.Equal(op.Unsqueeze(op.Cast(target, to=ir.DataType.INT64), [1]), classes)
        self.hot = op.cast(op.And(hot, op.Unsqueeze(counted, [1])) if counted is not None else hot, x)
        each = self.hot * op.Reshape(weights, column) if weights is not None else self.hot
        self.counts = op.ReduceSum(each, [1], keepdims=1)  # each target's weight [N, 1, …]
        scalar = dy.shape is not None and not dy.shape.rank()  # of the loss, or equal for all targets
        wide = dy if scalar else op.Unsqueeze(op.full(dy, self.loss), [1])
        self.share = wide / op.ReduceSum(self.counts, keepdims=0) if self.mean else wide

    def to_weights(self, log_p: Value) -> Value:
        """Return Σ lᵢ over the targets of a class; for a mean, Σ (lᵢ − loss) / Σ w."""
        op = self.op
        each = -op.ReduceSum(self.hot * log_p, [1], keepdims=1)
        apart = each - self.loss if self.mean else each
        axes = [i for i in range(self.rank) if i != 1]
        return op.ReduceSum(self.hot * (apart * self.share), axes, keepdims=0)


def softmax_cross_entropy(
    op: Backward, node: Node, dys: Gradients, x: Value, target: Value, weights: Value | None = None
) -> Gradients:
    """l = −w[t] · log softmax(x)[t]: dx = (softmax(x) − [k = t]) · w[t] · dl, divided by Σ w for a mean."""
    dy, d_log_p = (*dys, None)[:2]
    log_p = op.output(node, 1, "log_softmax", x)
    p, parts, dw = op.Exp(log_p), [], None
    if dy is not None:
        weighed = Weighed(op, node, dy, x, target, weights)
        parts.append((p - weighed.hot) * (weighed.counts * weighed.share))
        dw = weighed.to_weights(log_p) if weights is not None else None
    if d_log_p is not None:
        wide = op.full(d_log_p, log_p)
        parts.append(wide - p * op.ReduceSum(wide, [1], keepdims=1))
    return [op.total(parts, x), None, dw]


def negative_log_likelihood(
    op: Backward, node: Node, dy: Value, x: Value, target: Value, weights: Value | None = None
) -> Gradients:
    """l = −w[t] · x[t]: dx = −[k = t] · w[t] · dl, divided by Σ w for a mean."""
    weighed = Weighed(op, node, dy, x, target, weights)
    dx = -(weighed.hot * (weighed.counts * weighed.share))
    return [dx, None, weighed.to_weights(x) if weights is not None else None]


RULES: Rules = {
    "NegativeLogLikelihoodLoss": negative_log_likelihood,
    "SoftmaxCrossEntropyLoss": softmax_cross_entropy,
}
