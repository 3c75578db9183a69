"""Functions without float64 kernels in onnxruntime, written in operators with float64 kernels; the builder picks them.

The gradients of these forms at their kinks are those of the functions' own rules.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Form = Callable[..., Any]  # (builder, input, attributes) → the output


def cos(op: Any, x: Any) -> Any:
    """cos x = 1 − 2 · sin²(x / 2), within one rounding of 1."""
    half = op.Sin(op.Mul(x, 0.5))
    return op.Sub(1, op.Mul(op.Mul(half, half), 2))


def softplus(op: Any, x: Any) -> Any:
    """log(1 + eˣ) = (x + |x|) / 2 + log(1 + e^−|x|), which does not overflow."""
    size = op.Abs(x)
    return op.Add(op.Mul(op.Add(x, size), 0.5), op.Log(op.Add(op.Exp(op.Neg(size)), 1)))


def elu(op: Any, x: Any, alpha: float = 1.0) -> Any:
    """x above 0, else alpha · (eˣ − 1)."""
    positive = op.Greater(x, 0)
    below = op.Exp(op.Where(positive, 0, x))
    return op.Where(positive, x, op.Mul(op.Sub(below, 1), alpha))


def leaky_relu(op: Any, x: Any, alpha: float = float(np.float32(0.01))) -> Any:
    """x above 0, else alpha · x."""
    return op.Where(op.Greater(x, 0), x, op.Mul(x, alpha))


FORMS: dict[str, Form] = {
    "Cos": cos,
    "Cosh": lambda op, x: op.Mul(op.Add(op.Exp(x), op.Exp(op.Neg(x))), 0.5),
    "Elu": elu,
    "LeakyRelu": leaky_relu,
    "Mish": lambda op, x: op.Mul(x, op.Tanh(op.Softplus(x))),
    "Sinh": lambda op, x: op.Mul(op.Tanh(x), op.Cosh(x)),  # accurate around 0
    "Softplus": softplus,
    "Softsign": lambda op, x: op.Div(x, op.Add(op.Abs(x), 1)),
    "Tan": lambda op, x: op.Div(op.Sin(x), op.Cos(x)),
}


def in_float64(op: Any, op_type: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """Return the function of a float64 input in other operators; None if it has no such form."""
    return FORMS[op_type](op, *inputs, **attributes) if op_type in FORMS else None
