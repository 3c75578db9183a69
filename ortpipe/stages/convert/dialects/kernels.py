"""Kernels of rows and vectors, and libsvm's coupling of pairwise probabilities in closed form."""

import itertools

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder

LEAST = 1e-7  # smallest probability of a pair, as in libsvm, and of a class
KERNELS = ("linear", "rbf", "poly", "polynomial", "sigmoid")


def kernel(
    op: Builder, kind: str, x: ir.Value, vectors: ir.Value, gamma: float = 1.0, shift: float = 0.0, degree: float = 1.0
) -> ir.Value:
    """Return x·v, exp(−γ·‖x − v‖²), (γ·x·v + shift)^degree or tanh(γ·x·v + shift) of each row and vector [N, vectors].

    ‖x − v‖² is max(0, ‖x‖² − 2·x·v + ‖v‖²) of centred rows: fewer digits cancel than in the squares of large numbers.
    """
    if kind == "rbf":
        centre = op.const(np.mean(query.tensor(vectors).numpy(), axis=0))  # type: ignore[union-attr]
        x, vectors = op.Sub(x, centre), op.Sub(vectors, centre)
        rows = op.ReduceSum(op.Mul(x, x), [-1], keepdims=1)
        columns = op.Transpose(op.ReduceSum(op.Mul(vectors, vectors), [-1], keepdims=1), perm=[1, 0])
        product = op.Mul(op.Gemm(x, vectors, transB=1), 2)
        return op.Exp(op.Mul(op.Relu(op.Add(op.Sub(rows, product), columns)), -gamma))
    product = op.Gemm(x, vectors, transB=1)
    if kind == "linear":
        return product
    inner = op.Add(op.Mul(product, gamma), shift)
    return op.Tanh(inner) if kind == "sigmoid" else op.Pow(inner, op.like(degree, inner))


def couple(op: Builder, first: ir.Value, count: int) -> ir.Value:
    """Return logits [N, classes] from the probability of each pair's first class [N, pairs].

    With r_ij that of i where it is i or j, p minimizes Σ_{i≠j} (r_ji·p_i − r_ij·p_j)² and sums to 1. So p ∝ x where
    (Q + 1·1ᵀ)·x = 1, Q_ii = Σ_j r_ji² and Q_ij = −r_ij·r_ji: a positive definite system, which elimination without
    pivots solves. libsvm iterates towards p and stops within 0.005 / classes of it.

    Source: Wu, Lin and Weng, Probability estimates for multi-class classification by pairwise coupling, JMLR 5 (2004).
    """
    dtype = np.float32 if first.dtype is None else first.dtype.numpy()
    pairs, identity = list(itertools.combinations(range(count), 2)), np.eye(count, dtype=dtype)  # in libsvm's order
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
