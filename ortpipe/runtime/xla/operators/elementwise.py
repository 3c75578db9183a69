"""Operators that work entry by entry, with broadcasting; quantization, too."""

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import onnx

from ortpipe.runtime.xla.node import Array, Node, Unsupported, check_numbers

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


def softplus(x: Array) -> Array:
    """Return ln(1 + eˣ), which does not overflow."""
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def hard_sigmoid(node: Node, x: Array) -> Array:
    """max(0, min(1, α·x + β))."""
    alpha, beta = _number(node, "alpha", 0.2, x), _number(node, "beta", 0.5, x)
    if alpha >= np.finfo(x.dtype).max and beta == 0:  # the gradients' step function: 0 up to 0, 1 above, nan for nan
        return jnp.where(x > 0, jnp.ones((), x.dtype), jnp.where(x <= 0, jnp.zeros((), x.dtype), x))
    return jnp.clip(alpha * x + beta, 0, 1)


def _half(x: Array) -> Array:
    return np.asarray(0.5).astype(x.dtype)


def _selu(node: Node, x: Array) -> Array:
    alpha, gamma = _number(node, "alpha", 1.67326319217681884765625, x), _number(node, "gamma", 1.05070102214813232, x)
    return gamma * jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0)))


def _shrink(node: Node, x: Array) -> Array:
    bias, edge = _number(node, "bias", 0.0, x), _number(node, "lambd", 0.5, x)
    return jnp.where(x < -edge, x + bias, jnp.where(x > edge, x - bias, 0))


def _by_axis(node: Node, x: Array, part: Array) -> Array:
    """Return a scale or zero point so that it broadcasts to x."""
    if node.get("block_size", 0):
        raise Unsupported("scales by block")
    if part.ndim == 0 or part.size == 1:
        return part.reshape(())
    axis = node.get("axis", 1) % x.ndim
    return part.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


def quantize(node: Node, x: Array, scale: Array, zero: Array | None = None) -> Array:
    """Round(x / scale) + zero, clipped to the type's range."""
    dtype = np.dtype(np.uint8)
    if zero is not None:
        dtype = zero.dtype
    elif node.get("output_dtype", 0):
        dtype = as_type(np.zeros(()), node.get("output_dtype")).dtype
    if dtype.kind not in "iu":
        raise Unsupported(f"integers of type {dtype}")
    bounds = np.iinfo(dtype)
    steps = jnp.round(x / _by_axis(node, x, scale))
    shift = 0 if zero is None else _by_axis(node, x, zero).astype(np.int32)
    return jnp.clip(steps.astype(np.float32) + shift, bounds.min, bounds.max).astype(dtype)


def dequantize(node: Node, x: Array, scale: Array, zero: Array | None = None) -> Array:
    """(x − zero)·scale."""
    shift = 0 if zero is None else _by_axis(node, x, zero).astype(np.int32)
    return (jnp.asarray(x).astype(np.int32) - shift).astype(scale.dtype) * _by_axis(node, x, scale)


NUMPY = (  # operators, each with its function of jax.numpy
    "Abs=abs Acos=arccos Acosh=arccosh Add=add And=logical_and Asin=arcsin Asinh=arcsinh Atan=arctan "
    "Atanh=arctanh BitwiseAnd=bitwise_and BitwiseNot=bitwise_not BitwiseOr=bitwise_or BitwiseXor=bitwise_xor "
    "Ceil=ceil Cos=cos Cosh=cosh Equal=equal Exp=exp Floor=floor Greater=greater GreaterOrEqual=greater_equal "
    "IsNaN=isnan Less=less LessOrEqual=less_equal Log=log Mul=multiply Neg=negative Not=logical_not Or=logical_or "
    "Round=round Sign=sign Sin=sin Sinh=sinh Sqrt=sqrt Sub=subtract Tan=tan Tanh=tanh Where=where Xor=logical_xor"
)
OPERATORS: Mapping[str, Callable[..., Array]] = {
    **{operator: _plain(getattr(jnp, name)) for operator, name in (pair.split("=") for pair in NUMPY.split())},
    "BitShift": lambda node, x, y: (jnp.left_shift if node.get("direction") == "LEFT" else jnp.right_shift)(x, y),
    "Cast": lambda node, x: as_type(x, node.get("to")),
    "CastLike": lambda node, x, like: jnp.asarray(x).astype(like.dtype),
    "Celu": _of_float(lambda node, x: jax.nn.celu(x, node.get("alpha", 1.0))),
    "Clip": clip,
    "DequantizeLinear": dequantize,
    "Div": div,
    "Elu": _of_float(lambda node, x: jax.nn.elu(x, node.get("alpha", 1.0))),
    "Erf": _plain(lax.erf),
    "Gelu": _of_float(gelu),
    "HardSigmoid": _of_float(hard_sigmoid),
    "HardSwish": _of_float(lambda node, x: x * jnp.clip(x / np.asarray(6).astype(x.dtype) + _half(x), 0, 1)),
    "Identity": _plain(lambda x: x),
    "IsInf": is_inf,
    "LeakyRelu": _of_float(lambda node, x: jax.nn.leaky_relu(x, node.get("alpha", 0.01))),
    "Max": _variadic(jnp.maximum),
    "Mean": lambda node, *x: functools.reduce(jnp.add, x) / np.asarray(len(x)).astype(x[0].dtype),
    "Min": _variadic(jnp.minimum),
    "Mish": _plain(lambda x: x * jnp.tanh(softplus(x))),
    "Mod": lambda node, a, b: (jnp.fmod if node.get("fmod", 0) else jnp.mod)(a, b),
    "PRelu": _plain(lambda x, slope: jnp.where(x < 0, slope * x, x)),
    "Pow": power,
    "QuantizeLinear": quantize,
    "Reciprocal": _plain(lambda x: 1 / x),
    "Relu": _plain(lambda x: jnp.maximum(x, 0)),
    "Selu": _of_float(_selu),
    "Shrink": _of_float(_shrink),
    "Sigmoid": _plain(lax.logistic),
    "Softplus": _plain(softplus),
    "Softsign": _plain(jax.nn.soft_sign),
    "Sum": _variadic(jnp.add),
    "ThresholdedRelu": _of_float(lambda node, x: jnp.where(x > _number(node, "alpha", 1.0, x), x, 0)),
}
