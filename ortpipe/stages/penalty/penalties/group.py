"""Group penalty: Σⱼ ‖wⱼ‖ of the rows j of a weight."""

import onnx_ir as ir

from ortpipe.graph.core.builder import Builder

TINY = 1e-30  # below its square root a row's norm has derivative 0, as at 0


def group(op: Builder, parameter: ir.Value) -> ir.Value:
    """Return Σⱼ √(Σₖ wⱼₖ²), a scalar: the weights of a feature j become 0 only together (Yuan and Lin, 2006)."""
    squares = op.Mul(parameter, parameter)
    rank = parameter.shape.rank() if parameter.shape is not None else 2
    sums = op.ReduceSum(squares, [*range(1, rank)], keepdims=0) if rank > 1 else squares
    return op.ReduceSum(op.Sqrt(op.Max(sums, op.like(TINY, parameter))), keepdims=0)
