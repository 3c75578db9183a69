"""L1 penalty: Σ |w|."""

import onnx_ir as ir

from ortpipe.graph.core.builder import Builder


def l1(op: Builder, parameter: ir.Value) -> ir.Value:
    """Return Σ |w|, a scalar; its derivative at 0 is 0."""
    return op.ReduceSum(op.Abs(parameter), keepdims=0)
