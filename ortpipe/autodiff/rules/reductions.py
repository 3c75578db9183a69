"""Reductions other than sums: extremes, products, norms and logarithms."""

from onnx_ir import Value

from ortpipe.autodiff.backward import Backward, Rules
from ortpipe.autodiff.rules.arithmetic import Reduced, reduction


def extreme(op: Backward, reduced: Reduced, x: Value, dy: Value) -> Value:
    """Max, min: the values that equal the result share dy evenly, as PyTorch's `amax` and `amin`."""
    hits = op.cast(op.Equal(x, reduced.back(reduced.y)), x)
    return hits * (dy / sum_of(reduced, hits))


def prod(op: Backward, reduced: Reduced, x: Value, dy: Value) -> Value:
    """y = Π x: dx = dy · Π of the others; y / x where x ≠ 0; with a single zero, only that entry has a gradient."""
    is_zero = op.Equal(x, 0)
    filled = op.Where(is_zero, 1, x)
    zeros, product = sum_of(reduced, op.cast(is_zero, x)), product_of(reduced, filled)
    none, single = (op.cast(op.Equal(zeros, count), x) for count in (0, 1))
    return dy * op.Where(is_zero, product * single, product / filled * none)


def l2(op: Backward, reduced: Reduced, x: Value, dy: Value) -> Value:
    """y = √Σ x²: dx = dy · x / y, 0 where y = 0, as PyTorch's `norm`."""
    y = reduced.back(reduced.y)
    return x * (dy / op.Where(op.Equal(y, 0), 1, y))


def log_sum_exp(op: Backward, reduced: Reduced, x: Value, dy: Value) -> Value:
    """y = log Σ exp x: dx = dy · exp(x − y), which never overflows."""
    return op.Exp(x - reduced.back(reduced.y)) * dy


def sum_of(reduced: Reduced, x: Value) -> Value:
    """Return Σ over the same axes, kept with size 1."""
    if reduced.axes is not None and not reduced.nothing:
        return reduced.op.sum(x, reduced.axes, keepdims=True)
    return reduced.op.ReduceSum(x, reduced.dynamic, keepdims=1, **reduced.noop)


def product_of(reduced: Reduced, x: Value) -> Value:
    """Return Π over the same axes, kept with size 1."""
    if reduced.axes is None or reduced.nothing:
        return reduced.op.ReduceProd(x, *[v for v in [reduced.dynamic] if v is not None], keepdims=1, **reduced.noop)
    return reduced.op.ReduceProd(x, reduced.axes, keepdims=1)


RULES: Rules = {
    "ReduceL1": reduction(lambda op, reduced, x, dy: op.Sign(x) * dy),
    "ReduceL2": reduction(l2),
    "ReduceLogSum": reduction(lambda op, reduced, x, dy: dy / op.Exp(reduced.back(reduced.y))),
    "ReduceLogSumExp": reduction(log_sum_exp),
    "ReduceMax": reduction(extreme),
    "ReduceMin": reduction(extreme),
    "ReduceProd": reduction(prod),
    "ReduceSumSquare": reduction(lambda op, reduced, x, dy: x * (dy * 2)),
}
