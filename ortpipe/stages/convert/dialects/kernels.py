"""Kernels of rows and vectors, and libsvm's coupling of pairwise probabilities in closed form."""

import itertools
from collections.abc import Sequence

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
        x, vectors = x - centre, vectors - centre
        rows = op.ReduceSum(x * x, [-1], keepdims=1)
        columns = op.Transpose(op.ReduceSum(vectors * vectors, [-1], keepdims=1), perm=[1, 0])
        x = op.Where(op.IsInf(rows), op.like(0.0, x), x)  # else ∞ − ∞ = nan
        return op.Exp(op.Relu(rows - op.Gemm(x, vectors, transB=1) * 2 + columns) * -gamma)
    product = op.Gemm(x, vectors, transB=1)
    if kind == "linear":
        return product
    inner = product * gamma + shift
    return op.Tanh(inner) if kind == "sigmoid" else op.Pow(inner, degree)


def scores_of_pairs(
    op: Builder, values: ir.Value, dual: ir.Value, intercept: ir.Value, sizes: Sequence[int] | np.ndarray
) -> ir.Value:
    """Return libsvm's score of each pair of classes, [N, pairs]; above 0 it is for the first one.

    `values` are the kernel of rows and support vectors, `sizes` the numbers of these by class, and `dual` their
    coefficients against each other class, [classes − 1, vectors].
    """
    pairs, owner = list(itertools.combinations(range(len(sizes)), 2)), np.repeat(np.arange(len(sizes)), sizes)
    row_of_pair = np.stack([np.where(owner == i, j - 1, i) for i, j in pairs]).astype(np.int64)
    in_pair = np.stack([(owner == i) | (owner == j) for i, j in pairs])
    chosen = op.GatherElements(dual, op.const(row_of_pair), axis=0)
    return op.Gemm(values, chosen * op.like(in_pair, dual), intercept, transB=1)


def signs_of_pairs(count: int) -> np.ndarray:
    """Return −1 for the first and 1 for the second class of each pair, [pairs, classes]."""
    pairs = np.array(list(itertools.combinations(range(count), 2)))
    return np.eye(count)[pairs[:, 1]] - np.eye(count)[pairs[:, 0]]


def votes_of_pairs(op: Builder, second: ir.Value, count: int) -> ir.Value:
    """Return the votes for each class from those for the second class of each pair, 0 or 1 [N, pairs]."""
    signs = signs_of_pairs(count)
    return op.MatMul(second, op.like(signs, second)) + op.like((signs < 0).sum(axis=0), second)


def couple(op: Builder, first: ir.Value, count: int) -> ir.Value:
    """Return logits [N, classes] from the probability of each pair's first class [N, pairs].

    With r_ij that of i where it is i or j, p minimizes Σ_{i≠j} (r_ji·p_i − r_ij·p_j)² and sums to 1. So p ∝ x where
    (Q + 1·1ᵀ)·x = 1, Q_ii = Σ_j r_ji² and Q_ij = −r_ij·r_ji: a positive definite system, which elimination without
    pivots solves. libsvm iterates towards p and stops within 0.005 / classes of it.

    Source: Wu, Lin and Weng, Probability estimates for multi-class classification by pairwise coupling, JMLR 5 (2004).
    """
    pairs, identity = list(itertools.combinations(range(count), 2)), np.eye(count)  # in libsvm's order
    column_of_pair = np.zeros((count, count), np.int64)  # index of r_ij in [first classes, second classes]
    for number, (i, j) in enumerate(pairs):
        column_of_pair[i, j], column_of_pair[j, i] = number, number + len(pairs)
    first = op.Clip(first, LEAST, 1 - LEAST)
    columns = op.Concat(first, 1 - first, axis=-1)
    r = op.Gather(columns, op.const(column_of_pair), axis=-1) * op.like(1 - identity, first)  # [N, classes, classes]
    transposed = op.Transpose(r, perm=[0, 2, 1])
    squares = op.ReduceSum(transposed * transposed, [-1], keepdims=1)
    system = squares * op.like(identity, first) - r * transposed + 1
    right = op.Gather(system, [0], axis=-1) * 0 + 1
    system = op.Concat(system, right, axis=-1)  # [N, classes, classes + 1]
    for k in range(count):
        row = op.Slice(system, [k], [k + 1], [1])
        column = op.Slice(system, [k], [k + 1], [2])
        scaled = row / op.Slice(row, [k], [k + 1], [2])
        system = system - (column - op.like(identity[:, k : k + 1], first)) * scaled
    solution = op.Squeeze(op.Slice(system, [count], [count + 1], [2]), [-1])
    return op.Log(op.Max(solution, LEAST))
