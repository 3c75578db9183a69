"""Pairwise coupling as in libsvm, in closed form: class probabilities from the probabilities of pairs of classes."""

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core.builder import Builder

LEAST = 1e-7  # smallest probability of a pair, as in libsvm, and of a class


def pairs_of(count: int) -> list[tuple[int, int]]:
    """Return the pairs of classes in libsvm's order."""
    return [(i, j) for i in range(count) for j in range(i + 1, count)]


def couple(op: Builder, first: ir.Value, count: int) -> ir.Value:
    """Return logits [N, classes] from the probability of each pair's first class [N, pairs].

    With r_ij that of i where it is i or j, p minimizes Σ_{i≠j} (r_ji·p_i − r_ij·p_j)² and sums to 1. So p ∝ x where
    (Q + 1·1ᵀ)·x = 1, Q_ii = Σ_j r_ji² and Q_ij = −r_ij·r_ji: a positive definite system, which elimination without
    pivots solves. libsvm iterates towards p and stops within 0.005 / classes of it.

    Source: Wu, Lin and Weng, Probability estimates for multi-class classification by pairwise coupling, JMLR 5 (2004).
    """
    dtype = np.float32 if first.dtype is None else first.dtype.numpy()
    pairs, identity = pairs_of(count), np.eye(count, dtype=dtype)
    column_of_pair = np.zeros((count, count), np.int64)  # index of r_ij in [first classes, second classes]
    for number, (i, j) in enumerate(pairs):
        column_of_pair[i, j], column_of_pair[j, i] = number, number + len(pairs)
    least, largest = op.like(LEAST, first), op.like(1 - LEAST, first)
    first = op.Clip(first, least, largest)
    columns = op.Concat(first, op.Sub(op.like(1, first), first), axis=-1)
    r = op.Mul(op.Gather(columns, op.const(column_of_pair), axis=-1), op.const(1 - identity))  # [N, classes, classes]
    transposed = op.Transpose(r, perm=[0, 2, 1])
    squares = op.ReduceSum(op.Mul(transposed, transposed), [-1], keepdims=1)
    system = op.Add(op.Sub(op.Mul(squares, op.const(identity)), op.Mul(r, transposed)), op.like(1, first))
    right = op.Add(op.Mul(op.Gather(system, op.const(np.array([0])), axis=-1), op.like(0, first)), op.like(1, first))
    system = op.Concat(system, right, axis=-1)  # [N, classes, classes + 1]
    for k in range(count):
        row = op.Slice(system, [k], [k + 1], [1])
        column = op.Slice(system, [k], [k + 1], [2])
        scaled = op.Div(row, op.Slice(row, [k], [k + 1], [2]))
        system = op.Sub(system, op.Mul(op.Sub(column, op.const(identity[:, k : k + 1])), scaled))
    solution = op.Squeeze(op.Slice(system, [count], [count + 1], [2]), [-1])
    return op.Log(op.Max(solution, least))
