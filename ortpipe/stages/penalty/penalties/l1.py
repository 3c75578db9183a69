"""L1 penalty: Σ |w|."""

from ortpipe.graph.core.formulas import Builder, Value


def l1(op: Builder, parameter: Value) -> Value:
    """Return Σ |w|, a scalar; its derivative at 0 is 0."""
    return op.ReduceSum(op.Abs(parameter), keepdims=0)
