"""Trigonometric and hyperbolic functions."""

from onnx_ir import Value

from ortpipe.stages.derive.backward import Backward, Rules
from ortpipe.stages.derive.rules.arithmetic import elementwise


def square_plus(op: Backward, x: Value, sign: int, constant: int) -> Value:
    """constant + sign · x²."""
    return (op.Add if sign > 0 else op.Sub)(op.like(constant, x), op.Mul(x, x))


RULES: Rules = {
    "Acos": elementwise(lambda op, x, y: op.Neg(op.Reciprocal(op.Sqrt(square_plus(op, x, -1, 1))))),
    "Acosh": elementwise(lambda op, x, y: op.Reciprocal(op.Sqrt(square_plus(op, x, 1, -1)))),
    "Asin": elementwise(lambda op, x, y: op.Reciprocal(op.Sqrt(square_plus(op, x, -1, 1)))),
    "Asinh": elementwise(lambda op, x, y: op.Reciprocal(op.Sqrt(square_plus(op, x, 1, 1)))),
    "Atan": elementwise(lambda op, x, y: op.Reciprocal(square_plus(op, x, 1, 1))),
    "Atanh": elementwise(lambda op, x, y: op.Reciprocal(square_plus(op, x, -1, 1))),
    "Cos": elementwise(lambda op, x, y: op.Neg(op.Sin(x))),
    "Cosh": elementwise(lambda op, x, y: op.Sinh(x)),
    "Sin": elementwise(lambda op, x, y: op.Cos(x)),
    "Sinh": elementwise(lambda op, x, y: op.Cosh(x)),
    "Tan": elementwise(lambda op, x, y: square_plus(op, y, 1, 1)),
}
