"""Operators that work entry by entry, as templates of C; `$` is f for float32."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

from ortpipe.runtime.c.values import C_TYPES, NotCompiled, Value, ValueTable

FUNCTIONS = (  # operators that are functions of C
    "Acos=acos Acosh=acosh Asin=asin Asinh=asinh Atan=atan Atanh=atanh Ceil=ceil Cos=cos Cosh=cosh Erf=erf Exp=exp "
    "Floor=floor Log=log Round=rint Sin=sin Sinh=sinh Sqrt=sqrt Tan=tan Tanh=tanh"
)
TEMPLATES: Mapping[str, str] = {  # operators that keep the type
    **{operator: f"{name}$({{0}})" for operator, name in (pair.split("=") for pair in FUNCTIONS.split())},
    "Add": "({0} + {1})",
    "And": "({0} && {1})",
    "BitwiseAnd": "({0} & {1})",
    "BitwiseNot": "(~{0})",
    "BitwiseOr": "({0} | {1})",
    "BitwiseXor": "({0} ^ {1})",
    "Div": "({0} / {1})",
    "Mish": "({0} * tanh$(fmax$({0}, 0) + log1p$(exp$(-fabs$({0})))))",
    "Mul": "({0} * {1})",
    "Neg": "(-{0})",
    "Not": "(!{0})",
    "Or": "({0} || {1})",
    "PRelu": "({0} < 0 ? {1} * {0} : {0})",
    "Reciprocal": "(1 / {0})",
    "Relu": "(0 > {0} ? 0 : {0})",
    "Sigmoid": "(1 / (1 + exp$(-{0})))",
    "Sign": "({0} > 0 ? 1 : {0} < 0 ? -1 : {0} == 0 ? 0 : {0})",
    "Softplus": "(fmax$({0}, 0) + log1p$(exp$(-fabs$({0}))))",
    "Softsign": "({0} / (1 + fabs$({0})))",
    "Sub": "({0} - {1})",
    "Xor": "({0} != {1})",
}
COMPARISONS = {"Equal": "==", "Greater": ">", "GreaterOrEqual": ">=", "Less": "<", "LessOrEqual": "<="}
WITH_NUMBERS: Mapping[str, str] = {  # a template, and the defaults of attributes in it
    "Celu": "({x} > 0 ? {x} : {alpha} * expm1$({x} / {alpha}))|alpha=1",
    "Elu": "({x} < 0 ? {alpha} * expm1$({x}) : {x})|alpha=1",
    "HardSwish": "({x} * SMALLER(LARGER({x} / 6 + {half}, 0), 1))|half=0.5",
    "LeakyRelu": "({x} < 0 ? {alpha} * {x} : {x})|alpha=0.01",
    "Selu": "({gamma} * ({x} > 0 ? {x} : {alpha} * expm1$({x})))|alpha=1.673263192176818848|gamma=1.0507010221481323",
    "Shrink": "({x} < -{lambd} ? {x} + {bias} : {x} > {lambd} ? {x} - {bias} : 0)|bias=0|lambd=0.5",
    "ThresholdedRelu": "({x} > {alpha} ? {x} : 0)|alpha=1",
}


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


def _with_numbers(text: str) -> Callable[..., Value]:
    template, *pairs = text.split("|")
    defaults = {name: float(default) for name, default in (pair.split("=") for pair in pairs)}

    def run(op: ValueTable, node: Any, x: Value) -> Value:
        numbers = {name: number(node.get(name, default), x.dtype) for name, default in defaults.items()}
        return op.map(template.format(x="{0}", **numbers), x)

    return run


def _hard_sigmoid(op: ValueTable, node: Any, x: Value) -> Value:
    alpha, beta = node.get("alpha", 0.2), node.get("beta", 0.5)
    if alpha >= np.finfo(np.float32).max and beta == 0:  # the gradients' step function
        return op.map("({0} > 0 ? 1 : {0} <= 0 ? 0 : {0})", x)
    line = f"{number(alpha, x.dtype)} * {{0}} + {number(beta, x.dtype)}"
    return op.map(f"SMALLER(LARGER({line}, 0), 1)", x)


def _gelu(op: ValueTable, node: Any, x: Value) -> Value:
    def of(value: float) -> str:
        return number(value, x.dtype)

    if node.get("approximate", "none") == "tanh":
        inner = f"{of(np.sqrt(2 / np.pi))} * ({{0}} + {of(0.044715)} * {{0}} * {{0}} * {{0}})"
        return op.map(f"({of(0.5)} * {{0}} * (1 + tanh$({inner})))", x)
    return op.map(f"({of(0.5)} * {{0}} * (1 + erf$({{0}} * {of(np.sqrt(0.5))})))", x)


def cast(op: ValueTable, x: Value, dtype: Any) -> Value:
    """Return x in another type."""
    dtype = np.dtype(dtype)
    if dtype == x.dtype:
        return x
    if dtype.name not in C_TYPES:
        raise NotCompiled(f"values of type {dtype.name}")
    return op.map("({0} != 0)" if dtype.kind == "b" else f"(({C_TYPES[dtype.name]}) {{0}})", x, dtype=dtype)


def _power(op: ValueTable, node: Any, x: Value, y: Value) -> Value:
    if y.kind == "constant" and y.size == 1 and y.info.item() == 2:
        return op.reshape(op.map("({0} * {0})", x), np.broadcast_shapes(x.shape, y.shape))
    if x.dtype.kind != "f":
        raise NotCompiled("powers of integers")
    return op.map("pow$({0}, {1})", x, cast(op, y, x.dtype))


def _extreme(sign: str) -> Callable[..., Value]:
    def run(op: ValueTable, node: Any, *inputs: Value) -> Value:
        nan = " || {0} != {0}" if inputs[0].dtype.kind == "f" else ""
        return functools.reduce(lambda a, b: op.map(f"({{0}} {sign} {{1}}{nan} ? {{0}} : {{1}})", a, b), inputs)

    return run


def _clip(op: ValueTable, node: Any, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    x = x if low is None else op.map("({0} < {1} ? {1} : {0})", x, low)
    return x if high is None else op.map("({0} > {1} ? {1} : {0})", x, high)


def _is_inf(op: ValueTable, node: Any, x: Value) -> Value:
    signs = [("detect_positive", "{0} == INFINITY"), ("detect_negative", "{0} == -INFINITY")]
    return op.map(f"({' || '.join(text for name, text in signs if node.get(name, 1)) or '0'})", x, dtype=bool)


def _sum(op: ValueTable, node: Any, *inputs: Value) -> Value:
    return functools.reduce(lambda a, b: op.map("({0} + {1})", a, b), inputs)


def _mod(op: ValueTable, node: Any, a: Value, b: Value) -> Value:
    if a.dtype.kind == "f":
        rest = op.map("fmod$({0}, {1})", a, b)  # has the sign of a
        return rest if node.get("fmod", 0) else op.map("({0} * {1} < 0 ? {0} + {1} : {0})", rest, b)
    if node.get("fmod", 0) or a.dtype.kind == "u":
        return op.map("({0} % {1})", a, b)
    return op.map("({0} % {1} + ({0} % {1} != 0 && ({0} % {1} < 0) != ({1} < 0) ? {1} : 0))", a, b)


def _by_axis(op: ValueTable, node: Any, x: Value, part: Value) -> Value:
    """Return a scale or zero point so that it broadcasts to x."""
    if node.get("block_size", 0):
        raise NotCompiled("scales by block")
    axis = node.get("axis", 1) % max(len(x.shape), 1)
    sizes = [part.size if i == axis else 1 for i in range(len(x.shape))]
    return op.reshape(part, () if part.size == 1 else sizes)


def _quantize(op: ValueTable, node: Any, x: Value, scale: Value, zero: Value | None = None) -> Value:
    """round(x / scale) + zero, clipped to the type's range."""
    to = node.get("output_dtype", 0)
    dtype = zero.dtype if zero is not None else onnx.helper.tensor_dtype_to_np_dtype(to) if to else np.dtype(np.uint8)
    if np.dtype(dtype).kind not in "iu":
        raise NotCompiled(f"integers of type {dtype}")
    low, high = (number(bound, x.dtype) for bound in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    shift = op.constant(0, np.int32) if zero is None else cast(op, _by_axis(op, node, x, zero), np.int32)
    steps = op.map("(rint$({0} / {1}) + {2})", x, _by_axis(op, node, x, scale), shift, dtype=x.dtype)
    return cast(op, op.map(f"({{0}} < {low} ? {low} : {{0}} > {high} ? {high} : {{0}})", steps), dtype)


def _dequantize(op: ValueTable, node: Any, x: Value, scale: Value, zero: Value | None = None) -> Value:
    """(x − zero) · scale."""
    scaled = _by_axis(op, node, x, scale)
    if zero is None:
        return op.map("({0} * {1})", cast(op, x, scale.dtype), scaled)
    whole = op.map("({0} - {1})", cast(op, x, np.int32), cast(op, _by_axis(op, node, x, zero), np.int32))
    return op.map("({0} * {1})", cast(op, whole, scale.dtype), scaled)


def _plain(template: str) -> Callable[..., Value]:
    return lambda op, node, *x: op.map(template, *x)


OPERATORS: Mapping[str, Callable[..., Value]] = {
    **{name: _plain(template) for name, template in TEMPLATES.items()},
    **{
        name: lambda op, node, a, b, sign=sign: op.map(f"({{0}} {sign} {{1}})", a, b, dtype=bool)
        for name, sign in COMPARISONS.items()
    },
    **{name: _with_numbers(text) for name, text in WITH_NUMBERS.items()},
    "Abs": lambda op, node, x: op.map("fabs$({0})" if x.dtype.kind == "f" else "({0} < 0 ? -{0} : {0})", x),
    "Cast": lambda op, node, x: cast(op, x, onnx.helper.tensor_dtype_to_np_dtype(node.get("to"))),
    "CastLike": lambda op, node, x, like: cast(op, x, like.dtype),
    "Clip": _clip,
    "DequantizeLinear": _dequantize,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "Identity": lambda op, node, x: x,
    "IsInf": _is_inf,
    "IsNaN": lambda op, node, x: op.map("({0} != {0})", x, dtype=bool),
    "Max": _extreme(">"),
    "Mean": lambda op, node, *x: op.map(f"({{0}} / {len(x)})", _sum(op, node, *x)),
    "Min": _extreme("<"),
    "Mod": _mod,
    "Pow": _power,
    "QuantizeLinear": _quantize,
    "Sum": _sum,
    "Where": lambda op, node, c, a, b: op.map("({0} ? {1} : {2})", c, a, b, dtype=a.dtype),
}
