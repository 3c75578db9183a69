"""Activations, arithmetic, trigonometry, casts and normalizations along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from fuzz.sketch import Rejected, Sketch

Draw = Callable[[Sketch], Any]


def one(kind: str, domain: Callable[[Sketch, str], str] | None = None, **attributes: Draw) -> Callable[[Sketch], str]:
    """Return the form of an operator of one value."""

    def form(s: Sketch) -> str:
        x = s.x()
        chosen = {k: draw(s) for k, draw in attributes.items() if s.flag(0.7)}
        return s.op(kind, [domain(s, x) if domain else x], **chosen)

    return form


def step(kind: str, **attributes: Draw) -> Callable[[Sketch], str]:
    """Return the form of an operator whose slope is 0: beside its value, so that gradients go on."""

    def form(s: Sketch) -> str:
        x = s.x(least=1)
        return s.op("Add", [x, s.op(kind, [x], **{k: draw(s) for k, draw in attributes.items()})])

    return form


def along(kind: str) -> Callable[[Sketch], str]:
    """Return the form of an operator along one axis."""

    def form(s: Sketch) -> str:
        x = s.x(least=1)
        return s.op(kind, [x], **({"axis": s.axis(x)} if s.flag(0.8) else {}))

    return form


def between(low: float, high: float) -> Draw:
    """Return what draws a number."""
    return lambda s: float(np.float32(s.rng.uniform(low, high)))


def two(kind: str, domain: Callable[[Sketch, str], str] | None = None) -> Callable[[Sketch], str]:
    """Return the form of an operator of two values that broadcast; the second has the domain."""

    def form(s: Sketch) -> str:
        x = s.x()
        pair = [x, x] if s.flag(0.1) else [x, s.like(x)]
        if not domain and s.flag():
            pair.reverse()
        if domain:
            pair[1] = domain(s, pair[1])
        return s.op(kind, pair)

    return form


def several(kind: str) -> Callable[[Sketch], str]:
    """Return the form of an operator of any number of values."""

    def form(s: Sketch) -> str:
        x = s.x()
        values = [x, *(s.like(x) for _ in range(s.size(0, 3)))]
        if kind in ("Sum", "Mean") and s.flag(0.2):
            values.append(x)
        return s.op(kind, [values[i] for i in s.rng.permutation(len(values))])

    return form


def power(s: Sketch) -> str:
    """x^p: a real exponent over a positive base, or a whole one."""
    x = s.x()
    if s.flag():
        return s.op("Pow", [s.positive(x), s.like(x)])
    return s.op("Pow", [x, s.number(s.choose([1, 2, 3])) if s.flag() else s.const(s.choose([2, 3]))])


def remainder(s: Sketch) -> str:
    """x mod y, as in C or as in Python."""
    x = s.x()
    return s.op("Mod", [x, s.positive(s.like(x))], fmod=1)


def where(s: Sketch) -> str:
    """One of two values, by a condition that is computed or constant."""
    x = s.x()
    y = s.like(x)
    if s.flag():
        condition = s.op(s.choose(["Greater", "Less"]), [x, y])
    else:
        condition = s.const(s.rng.random(s.of(y)) < 0.5, np.bool_)
    return s.op("Where", [condition, *([x, y] if s.flag() else [y, x])])


def clip(s: Sketch) -> str:
    """Values within bounds, which may be absent, constant or computed."""
    x = s.x()
    low = s.choose([None, s.number(-0.7), s.op("Neg", [s.positive(s.source([]))])])
    high = s.choose([None, s.number(0.6), s.positive(s.source([]))])
    return s.op("Clip", [x, low, high])


def prelu(s: Sketch) -> str:
    """A slope of its own for each channel, or for all."""
    x = s.x(least=1)
    return s.op("PRelu", [x, s.source([1 if s.flag() else n for n in s.of(x)][s.size(0, s.rank(x)) :])])


def cast(s: Sketch) -> str:
    """To float64 and back."""
    return s.op("Cast", [s.op("Cast", [s.x()], to=TensorProto.DOUBLE)], to=TensorProto.FLOAT)


def cast_like(s: Sketch) -> str:
    """To the type of another value."""
    x = s.x()
    return s.op("CastLike", [x, s.like(x)])


def lp_normalization(s: Sketch) -> str:
    """x / ‖x‖ along an axis."""
    x = s.x(least=1)
    return s.op("LpNormalization", [x], axis=s.axis(x), p=s.choose([1, 2]))


def mean_variance(s: Sketch) -> str:
    """(x − mean) / deviation over axes."""
    x = s.x(least=2)
    axes = sorted(int(a) for a in s.rng.choice(s.rank(x), s.size(1, s.rank(x)), replace=False))
    if np.prod([s.of(x)[a] for a in axes]) < 3:
        raise Rejected
    return s.op("MeanVarianceNormalization", [x], axes=axes)


alpha = between(0.2, 1.5)
FORMS: dict[str, Callable[[Sketch], Any]] = {
    **{k: one(k) for k in ("Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Selu", "Softplus", "Softsign", "Erf", "Mish")},
    **{k: one(k) for k in ("Identity", "HardSwish", "Sin", "Cos", "Atan", "Asinh", "Sinh", "Cosh", "Exp")},
    **{k: one(k, Sketch.unit) for k in ("Tan", "Asin", "Acos", "Atanh")},
    **{k: one(k, Sketch.positive) for k in ("Log", "Sqrt", "Reciprocal")},
    **{k: one(k, alpha=alpha) for k in ("Elu", "Celu", "LeakyRelu", "ThresholdedRelu", "Swish")},
    **{k: step(k) for k in ("Floor", "Ceil", "Round", "Sign")},
    **{k: along(k) for k in ("Softmax", "LogSoftmax")},
    **{k: two(k) for k in ("Add", "Sub", "Mul")},
    **{k: several(k) for k in ("Max", "Min", "Sum", "Mean")},
    "Acosh": one("Acosh", Sketch.above),
    "Cast": cast,
    "CastLike": cast_like,
    "Clip": clip,
    "Div": two("Div", Sketch.positive),
    "Gelu": one("Gelu", approximate=lambda s: s.choose(["none", "tanh"])),
    "HardSigmoid": one("HardSigmoid", alpha=between(0.1, 0.4), beta=between(0.3, 0.6)),
    "Hardmax": step("Hardmax", axis=lambda s: -1),
    "LpNormalization": lp_normalization,
    "MeanVarianceNormalization": mean_variance,
    "Mod": remainder,
    "PRelu": prelu,
    "Pow": power,
    "Shrink": one("Shrink", lambd=between(0.2, 0.6), bias=between(-0.3, 0.3)),
    "Where": where,
}
# What a loop's body is made of: values keep their shape there.
PLAIN = ("Add", "Atan", "Cos", "Div", "Elu", "Erf", "LeakyRelu", "Max", "Mean", "Mul", "Neg", "Relu", "Sigmoid", "Sin")
INSIDE = (*PLAIN, "Softmax", "Softplus", "Sqrt", "Sub", "Sum", "Tanh", "Where")
