"""Scores of classes from scores of pairs of classes, as in scikit-learn's `_ovr_decision_function`."""

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core.builder import Builder

REMAINDER = "scores are counted votes of pairs and a bounded remainder: gradients pass through the remainder alone"


def per_class(op: Builder, second: ir.Value, chosen: ir.Value, count: int) -> tuple[ir.Value, ir.Value]:
    """Return votes + s/(3·(|s| + 1)) of sums s of confidences, [N, classes], and the votes.

    `second` [N, pairs] is the confidence in a pair's second class, `chosen` whether the pair votes for it.
    """
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    signs = np.zeros((len(pairs), count))
    for p, (i, j) in enumerate(pairs):
        signs[p, i], signs[p, j] = -1, 1
    dtype = second.dtype.numpy() if second.dtype is not None else np.float32
    total = op.MatMul(second, op.const(signs.astype(dtype)))
    is_second = op.cast(chosen, second)
    # is_second is the second class's vote; the first gets 1 − that
    votes = op.Add(op.MatMul(is_second, op.const(signs.astype(dtype))), op.const((signs < 0).sum(axis=0).astype(dtype)))
    return op.Add(votes, op.Div(total, op.Mul(op.Add(op.Abs(total), 1), 3))), votes
