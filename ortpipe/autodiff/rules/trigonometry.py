"""Trigonometric and hyperbolic functions."""

from ortpipe.autodiff.backward import Rules
from ortpipe.autodiff.rules.arithmetic import elementwise

RULES: Rules = {
    "Acos": elementwise(lambda op, x, y: -op.Reciprocal(op.Sqrt(1 - x * x))),
    "Acosh": elementwise(lambda op, x, y: op.Reciprocal(op.Sqrt(-1 + x * x))),
    "Asin": elementwise(lambda op, x, y: op.Reciprocal(op.Sqrt(1 - x * x))),
    "Asinh": elementwise(lambda op, x, y: op.Reciprocal(op.Sqrt(1 + x * x))),
    "Atan": elementwise(lambda op, x, y: op.Reciprocal(1 + x * x)),
    "Atanh": elementwise(lambda op, x, y: op.Reciprocal(1 - x * x)),
    "Cos": elementwise(lambda op, x, y: -op.Sin(x)),
    "Cosh": elementwise(lambda op, x, y: op.Sinh(x)),
    "Sin": elementwise(lambda op, x, y: op.Cos(x)),
    "Sinh": elementwise(lambda op, x, y: op.Cosh(x)),
    "Tan": elementwise(lambda op, x, y: 1 + y * y),
}
