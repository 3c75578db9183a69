"""Operators that work entry by entry, as expressions of C: {0} is the first input, {alpha} an attribute."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

from ortpipe.runtime.c.values import NotCompiled, Value, ValueTable, broadcast_shapes

FUNCTIONS = (  # operators that are functions of C
    "Acos=acos Acosh=acosh Asin=asin Asinh=asinh Atan=atan Atanh=atanh Ceil=ceil Cos=cos Cosh=cosh Erf=erf Exp=exp "
    "Floor=floor Log=log Round=rint Sin=sin Sinh=sinh Sqrt=sqrt Tan=tan Tanh=tanh"
)
TEMPLATES: Mapping[str, str] = {  # `$` is f for float32
    **{operator: f"{name}$({{0}})" for operator, name in (pair.split("=") for pair in FUNCTIONS.split())},
    "Add": "{0} + {1}",
    "And": "{0} && {1}",
    "BitwiseAnd": "{0} & {1}",
    "BitwiseNot": "~{0}",
    "BitwiseOr": "{0} | {1}",
    "BitwiseXor": "{0} ^ {1}",
    "Celu": "{0} > 0 ? {0} : {alpha} * expm1$({0} / {alpha})",
    "Elu": "{0} < 0 ? {alpha} * expm1$({0}) : {0}",
    "HardSwish": "{0} * SMALLER(LARGER(({0} + 3) / 6, 0), 1)",
    "LeakyRelu": "{0} < 0 ? {alpha} * {0} : {0}",
    "Mish": "{0} * tanh$(fmax$({0}, 0) + log1p$(exp$(-fabs$({0}))))",
    "Mul": "{0} * {1}",
    "Neg": "-{0}",
    "Not": "!{0}",
    "Or": "{0} || {1}",
    "PRelu": "{0} < 0 ? {1} * {0} : {0}",
    "Reciprocal": "1 / {0}",
    "Relu": "0 > {0} ? 0 : {0}",
    "Selu": "{gamma} * ({0} > 0 ? {0} : {alpha} * expm1$({0}))",
    "Shrink": "{0} < -{lambd} ? {0} + {bias} : {0} > {lambd} ? {0} - {bias} : 0",
    "Sigmoid": "1 / (1 + exp$(-{0}))",
    "Sign": "{0} > 0 ? 1 : {0} < 0 ? -1 : {0} == 0 ? 0 : {0}",
    "Softplus": "fmax$({0}, 0) + log1p$(exp$(-fabs$({0})))",
    "Softsign": "{0} / (1 + fabs$({0}))",
    "Sub": "{0} - {1}",
    "ThresholdedRelu": "{0} > {alpha} ? {0} : 0",
    "Xor": "{0} != {1}",
}
TESTS: Mapping[str, str] = {
    "Equal": "{0} == {1}",
    "Greater": "{0} > {1}",
    "GreaterOrEqual": "{0} >= {1}",
    "IsInf": "({0} == INFINITY && {detect_positive}) || ({0} == -INFINITY && {detect_negative})",
    "IsNaN": "{0} != {0}",
    "Less": "{0} < {1}",
    "LessOrEqual": "{0} <= {1}",
}
WRONG = "wrong"  # the variable of C for whether an index was out of bounds, or an integer divided by 0


def number(value: Any, dtype: Any) -> str:
    """Return a number as a literal of C, which reads back as exactly the same.

    >>> number(0.1, "float32"), number(np.inf, "float64"), number(True, "bool")
    ('0.1f', 'INFINITY', '1')
    """
    dtype = np.dtype(dtype)
    if dtype.kind != "f":
        bounds = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        whole = int(value) if np.isfinite(value) else bounds[int(value > 0)]
        if whole == -(2**63):
            return "INT64_MIN"
        text = str(whole) if abs(whole) < 2**31 else f"{'U' if whole >= 2**63 else ''}INT64_C({whole})"
        return f"({text})" if whole < 0 else text
    if not np.isfinite(value):
        return "NAN" if np.isnan(value) else "INFINITY" if value > 0 else "(-INFINITY)"
    text = repr(dtype.type(value).item()) if dtype == np.float64 else str(np.float32(value))
    text += "f" if dtype == np.float32 else ""
    return f"({text})" if text.startswith("-") else text


def _plain(template: str, dtype: Any = None) -> Callable[..., Value]:
    def run(op: ValueTable, node: Any, *inputs: Value) -> Value:
        text = template
        for name, value in node.attributes.items():
            if isinstance(value, float | int):
                text = text.replace(f"{{{name}}}", number(value, inputs[0].dtype))
        return op.map(text, *inputs, dtype=dtype)

    return run


def cast(op: ValueTable, x: Value, dtype: Any) -> Value:
    """Return x in another type."""
    dtype = np.dtype(dtype)
    return x if dtype == x.dtype else op.map("{0} != 0" if dtype.kind == "b" else "{0}", x, dtype=dtype)


def _folded(template: str) -> Callable[..., Value]:
    """Return the operator of any number of inputs that joins two after each other."""
    return lambda op, node, *inputs: functools.reduce(lambda a, b: op.map(template, a, b), inputs)


def _gelu(op: ValueTable, node: Any, x: Value) -> Value:
    half, root, cubic = (number(value, x.dtype) for value in (0.5, np.sqrt(2 / np.pi), 0.044715))
    if node.get("approximate") == "tanh":
        return op.map(f"{half} * {{0}} * (1 + tanh$({root} * ({{0}} + {cubic} * {{0}} * {{0}} * {{0}})))", x)
    return op.map(f"{half} * {{0}} * (1 + erf$({{0}} * {number(np.sqrt(0.5), x.dtype)}))", x)


def _hard_sigmoid(op: ValueTable, node: Any, x: Value) -> Value:
    alpha, beta = node.get("alpha"), node.get("beta")
    if alpha >= np.finfo(np.float32).max and beta == 0:  # the gradients' step function
        return op.map("{0} > 0 ? 1 : {0} <= 0 ? 0 : {0}", x)
    return op.map(f"SMALLER(LARGER({number(alpha, x.dtype)} * {{0}} + {number(beta, x.dtype)}, 0), 1)", x)


def _power(op: ValueTable, node: Any, x: Value, y: Value) -> Value:
    if y.kind == "constant" and y.size == 1 and y.info.item() == 2:
        return op.reshape(op.map("{0} * {0}", x), broadcast_shapes(x.shape, y.shape))
    if x.dtype.kind != "f":
        raise NotCompiled("powers of integers")
    return op.map("pow$({0}, {1})", x, cast(op, y, x.dtype))


def _clip(op: ValueTable, node: Any, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    x = x if low is None else op.map("{0} < {1} ? {1} : {0}", x, low)
    return x if high is None else op.map("{0} > {1} ? {1} : {0}", x, high)


def _whole(op: ValueTable, template: str, a: Value, b: Value) -> Value:
    """Return a quotient or remainder of integers; where b is 0, it is 0, and the outputs of the step become nan."""
    return op.map(f"{{1}} == 0 ? ({WRONG} = true, 0) : {template}", a, b)


def _div(op: ValueTable, node: Any, a: Value, b: Value) -> Value:
    if a.dtype.kind == "f":
        return op.map("{0} / {1}", a, b)
    negated = "" if a.dtype.kind == "u" else "{1} == -1 ? (int64_t) (0 - (uint64_t) {0}) : "  # −2⁶³ / −1 is −2⁶³
    return _whole(op, negated + "{0} / {1}", a, b)


def _mod(op: ValueTable, node: Any, a: Value, b: Value) -> Value:
    if a.dtype.kind == "f":
        rest = op.map("fmod$({0}, {1})", a, b)  # has the sign of a
        return rest if node.get("fmod") else op.map("{0} * {1} < 0 ? {0} + {1} : {0}", rest, b)
    if a.dtype.kind == "u":
        return _whole(op, "{0} % {1}", a, b)
    rest = _whole(op, "{1} == -1 ? 0 : {0} % {1}", a, b)
    return rest if node.get("fmod") else op.map("{0} != 0 && ({0} < 0) != ({1} < 0) ? {0} + {1} : {0}", rest, b)


def _by_axis(op: ValueTable, node: Any, x: Value, part: Value) -> Value:
    """Return a scale or zero point so that it broadcasts to x."""
    if node.get("block_size"):
        raise NotCompiled("scales by block")
    axis = node.get("axis") % max(len(x.shape), 1)
    sizes = [part.size if i == axis else 1 for i in range(len(x.shape))]
    return op.reshape(part, () if part.size == 1 else sizes)


def _quantize(op: ValueTable, node: Any, x: Value, scale: Value, zero: Value | None = None) -> Value:
    """round(x / scale) + zero, clipped to the type's range."""
    to = node.get("output_dtype")
    dtype = zero.dtype if zero is not None else onnx.helper.tensor_dtype_to_np_dtype(to) if to else np.dtype(np.uint8)
    if np.dtype(dtype).kind not in "iu":
        raise NotCompiled(f"integers of type {dtype}")
    low, high = (number(bound, x.dtype) for bound in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    shift = op.constant(0, np.int32) if zero is None else cast(op, _by_axis(op, node, x, zero), np.int32)
    steps = op.map("rint$({0} / {1}) + {2}", x, _by_axis(op, node, x, scale), shift)
    return op.map(f"{{0}} < {low} ? {low} : {{0}} > {high} ? {high} : {{0}}", steps, dtype=dtype)


def _dequantize(op: ValueTable, node: Any, x: Value, scale: Value, zero: Value | None = None) -> Value:
    """(x − zero) · scale."""
    shift = op.constant(0, np.int32) if zero is None else _by_axis(op, node, x, zero)
    whole = op.map("{0} - {1}", cast(op, x, np.int32), cast(op, shift, np.int32))
    return op.map("{0} * {1}", cast(op, whole, scale.dtype), _by_axis(op, node, x, scale))


OPERATORS: Mapping[str, Callable[..., Value]] = {
    **{name: _plain(template) for name, template in TEMPLATES.items()},
    **{name: _plain(template, bool) for name, template in TESTS.items()},
    "Abs": lambda op, node, x: op.map("fabs$({0})" if x.dtype.kind == "f" else "{0} < 0 ? -{0} : {0}", x),
    "Cast": lambda op, node, x: cast(op, x, onnx.helper.tensor_dtype_to_np_dtype(node.get("to"))),
    "CastLike": lambda op, node, x, like: cast(op, x, like.dtype),
    "Clip": _clip,
    "DequantizeLinear": _dequantize,
    "Div": _div,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "Max": _folded("LARGER({0}, {1})"),
    "Mean": lambda op, node, *x: op.map(f"{{0}} / {len(x)}", _folded("{0} + {1}")(op, node, *x)),
    "Min": _folded("SMALLER({0}, {1})"),
    "Mod": _mod,
    "Pow": _power,
    "QuantizeLinear": _quantize,
    "Sum": _folded("{0} + {1}"),
    "Where": lambda op, node, c, a, b: op.map("{0} ? {1} : {2}", c, a, b, dtype=a.dtype),
}
