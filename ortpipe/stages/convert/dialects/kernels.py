"""Kernels of rows and vectors, of support vector machines and scikit-learn's other kernel methods."""

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder

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
