"""Elementwise operators, with broadcasting."""

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import onnx

from ortpipe.runtime.xla.node import Array, Node, check_numbers

lax = jax.lax


def _plain(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return the operator for a function without attributes."""
    return lambda node, *inputs: function(*inputs)


def _variadic(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    return lambda node, *inputs: functools.reduce(function, inputs)


def _of_float(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return the operator for a function of one input, with attributes such as `alpha` cast to the input's type."""

    def run(node: Node, x: Array) -> Array:
        return jnp.asarray(function(node, x)).astype(x.dtype)

    return run


def _number(node: Node, name: str, default: float, x: Array) -> Array:
    return np.asarray(node.get(name, default)).astype(x.dtype)


def div(node: Node, a: Array, b: Array) -> Array:
    """a / b; integers are truncated towards 0."""
    if np.issubdtype(a.dtype, np.integer):
        a, b = jnp.broadcast_arrays(a, b)
        return lax.div(a, b)
    return jnp.divide(a, b)


def mod(node: Node, a: Array, b: Array) -> Array:
    """a mod b, with the sign of b, or of a with `fmod`."""
    return jnp.fmod(a, b) if node.get("fmod", 0) else jnp.mod(a, b)


def power(node: Node, x: Array, y: Array) -> Array:
    """x^y in the type of x; integer results are truncated: 2⁻¹ is 0."""
    if isinstance(y, np.ndarray) and y.ndim == 0 and y == 2:
        return x * x
    if not (jnp.issubdtype(x.dtype, jnp.integer) and jnp.issubdtype(y.dtype, jnp.signedinteger)):
        return jnp.power(x, y).astype(x.dtype)
    sign = jnp.where(y % 2 == 0, 1, x)
    inverse = jnp.where(abs(x) == 1, sign, 0)
    return jnp.where(y < 0, inverse, jnp.power(x, jnp.maximum(y, 0))).astype(x.dtype)


def clip(node: Node, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """min(max(x, low), high)."""
    x = x if low is None else jnp.maximum(x, low)
    return x if high is None else jnp.minimum(x, high)


def cast(node: Node, x: Array) -> Array:
    """Cast x to the type `to`."""
    return as_type(x, node.get("to"))


def cast_like(node: Node, x: Array, like: Array) -> Array:
    """Cast x to the type of another value."""
    return jnp.asarray(x).astype(like.dtype)


def as_type(x: Array, to: int) -> Array:
    """Return x in a type given as in ONNX."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(to)
    check_numbers(np.empty(0, dtype))
    return x.astype(dtype) if isinstance(x, np.ndarray) else lax.convert_element_type(x, dtype)


def is_inf(node: Node, x: Array) -> Array:
    """Whether x is infinite, with one of the requested signs."""
    below = jnp.isneginf(x) if node.get("detect_negative", 1) else jnp.zeros(x.shape, bool)
    return below | jnp.isposinf(x) if node.get("detect_positive", 1) else below


def gelu(node: Node, x: Array) -> Array:
    """x·Φ(x), by erf or by tanh."""
    if node.get("approximate", "none") == "tanh":
        inner = np.sqrt(2 / np.pi).astype(x.dtype) * (x + np.asarray(0.044715).astype(x.dtype) * x * x * x)
        return _half(x) * x * (1 + jnp.tanh(inner))
    return _half(x) * x * (1 + lax.erf(x * np.sqrt(0.5).astype(x.dtype)))


def prelu(node: Node, x: Array, slope: Array) -> Array:
    """x where it is not negative, else slope·x."""
    return jnp.where(x < 0, slope * x, x)


def softplus(x: Array) -> Array:
    """Return ln(1 + eˣ), which does not overflow."""
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def mean(node: Node, *inputs: Array) -> Array:
    """The mean of the inputs."""
    return functools.reduce(jnp.add, inputs) / np.asarray(len(inputs)).astype(inputs[0].dtype)


def bit_shift(node: Node, x: Array, y: Array) -> Array:
    """x shifted by y bits."""
    return jnp.left_shift(x, y) if node.get("direction") == "LEFT" else jnp.right_shift(x, y)


def hard_sigmoid(node: Node, x: Array) -> Array:
    """max(0, min(1, α·x + β))."""
    alpha, beta = _number(node, "alpha", 0.2, x), _number(node, "beta", 0.5, x)
    if alpha >= np.finfo(x.dtype).max and beta == 0:  # the gradients' step function: 0 up to 0, 1 above, nan for nan
        return jnp.where(x > 0, jnp.ones((), x.dtype), jnp.where(x <= 0, jnp.zeros((), x.dtype), x))
    return jnp.clip(alpha * x + beta, 0, 1)


def where(node: Node, condition: Array, x: Array, y: Array) -> Array:
    """x where the condition holds, else y."""
    return jnp.where(condition, x, y)


def _half(x: Array) -> Array:
    return np.asarray(0.5).astype(x.dtype)


def _elu(node: Node, x: Array) -> Array:
    return jnp.where(x > 0, x, _number(node, "alpha", 1.0, x) * jnp.expm1(jnp.minimum(x, 0)))


def _celu(node: Node, x: Array) -> Array:
    alpha = _number(node, "alpha", 1.0, x)
    return jnp.maximum(x, 0) + jnp.minimum(0, alpha * jnp.expm1(jnp.minimum(x, 0) / alpha))


def _selu(node: Node, x: Array) -> Array:
    alpha, gamma = _number(node, "alpha", 1.67326319217681884765625, x), _number(node, "gamma", 1.05070102214813232, x)
    return gamma * jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0)))


def _shrink(node: Node, x: Array) -> Array:
    bias, edge = _number(node, "bias", 0.0, x), _number(node, "lambd", 0.5, x)
    return jnp.where(x < -edge, x + bias, jnp.where(x > edge, x - bias, 0))


def _thresholded(node: Node, x: Array) -> Array:
    return jnp.where(x > _number(node, "alpha", 1.0, x), x, 0)


def _leaky(node: Node, x: Array) -> Array:
    return jnp.where(x < 0, _number(node, "alpha", 0.01, x) * x, x)


def _hard_swish(node: Node, x: Array) -> Array:
    return x * jnp.clip(x / np.asarray(6).astype(x.dtype) + _half(x), 0, 1)


def _relu(x: Array) -> Array:
    return jnp.maximum(x, 0)


OPERATORS: Mapping[str, Callable[..., Array]] = {
    "Abs": _plain(jnp.abs),
    "Acos": _plain(jnp.arccos),
    "Acosh": _plain(jnp.arccosh),
    "Add": _plain(jnp.add),
    "And": _plain(jnp.logical_and),
    "Asin": _plain(jnp.arcsin),
    "Asinh": _plain(jnp.arcsinh),
    "Atan": _plain(jnp.arctan),
    "Atanh": _plain(jnp.arctanh),
    "BitShift": bit_shift,
    "BitwiseAnd": _plain(jnp.bitwise_and),
    "BitwiseNot": _plain(jnp.bitwise_not),
    "BitwiseOr": _plain(jnp.bitwise_or),
    "BitwiseXor": _plain(jnp.bitwise_xor),
    "Cast": cast,
    "CastLike": cast_like,
    "Ceil": _plain(jnp.ceil),
    "Celu": _of_float(_celu),
    "Clip": clip,
    "Cos": _plain(jnp.cos),
    "Cosh": _plain(jnp.cosh),
    "Div": div,
    "Elu": _of_float(_elu),
    "Equal": _plain(jnp.equal),
    "Erf": _plain(lax.erf),
    "Exp": _plain(jnp.exp),
    "Floor": _plain(jnp.floor),
    "Gelu": _of_float(gelu),
    "Greater": _plain(jnp.greater),
    "GreaterOrEqual": _plain(jnp.greater_equal),
    "HardSigmoid": _of_float(hard_sigmoid),
    "HardSwish": _of_float(_hard_swish),
    "Identity": _plain(lambda x: x),
    "IsInf": is_inf,
    "IsNaN": _plain(jnp.isnan),
    "LeakyRelu": _of_float(_leaky),
    "Less": _plain(jnp.less),
    "LessOrEqual": _plain(jnp.less_equal),
    "Log": _plain(jnp.log),
    "Max": _variadic(jnp.maximum),
    "Mean": mean,
    "Min": _variadic(jnp.minimum),
    "Mish": _plain(lambda x: x * jnp.tanh(softplus(x))),
    "Mod": mod,
    "Mul": _plain(jnp.multiply),
    "Neg": _plain(jnp.negative),
    "Not": _plain(jnp.logical_not),
    "Or": _plain(jnp.logical_or),
    "PRelu": prelu,
    "Pow": power,
    "Reciprocal": _plain(lambda x: 1 / x),
    "Relu": _plain(_relu),
    "Round": _plain(jnp.round),
    "Selu": _of_float(_selu),
    "Shrink": _of_float(_shrink),
    "Sigmoid": _plain(lax.logistic),
    "Sign": _plain(jnp.sign),
    "Sin": _plain(jnp.sin),
    "Sinh": _plain(jnp.sinh),
    "Softplus": _plain(softplus),
    "Softsign": _plain(lambda x: x / (1 + jnp.abs(x))),
    "Sqrt": _plain(jnp.sqrt),
    "Sub": _plain(jnp.subtract),
    "Sum": _variadic(jnp.add),
    "Tan": _plain(jnp.tan),
    "Tanh": _plain(jnp.tanh),
    "ThresholdedRelu": _of_float(_thresholded),
    "Where": where,
    "Xor": _plain(jnp.logical_xor),
}
