"""L2 penalty: Σ w²."""

import onnx_ir as ir

from ortpipe.graph.core.builder import Builder


def l2(op: Builder, parameter: ir.Value) -> ir.Value:
    """Return Σ w² (no factor ½), a scalar."""
    return op.ReduceSum(op.Mul(parameter, parameter), keepdims=0)
