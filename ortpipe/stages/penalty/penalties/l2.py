"""L2 penalty: Σ w²."""

from ortpipe.graph.core.formulas import Builder, Value


def l2(op: Builder, parameter: Value) -> Value:
    """Return Σ w² (no factor ½), a scalar."""
    return op.ReduceSum(op.Mul(parameter, parameter), keepdims=0)
