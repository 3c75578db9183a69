"""Group penalty: Σⱼ ‖wⱼ‖ of the rows j of a weight."""

from ortpipe.graph.core.formulas import Builder, Value

TINY = 1e-30  # below its square root a row's norm has derivative 0, as at 0


def group(op: Builder, parameter: Value) -> Value:
    """Return Σⱼ √(Σₖ wⱼₖ²), a scalar: the weights of a feature j become 0 only together (Yuan and Lin, 2006)."""
    squares = op.Mul(parameter, parameter)
    rank = parameter.shape.rank() if parameter.shape is not None else 2
    sums = op.ReduceSum(squares, [*range(1, rank)], keepdims=0) if rank > 1 else squares
    return op.ReduceSum(op.Sqrt(op.Max(sums, op.like(TINY, parameter))), keepdims=0)
