"""Operators that relate entries to others along axes, and losses of logarithms along one."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from ortpipe.runtime.xla.node import Array, Node, Result, Unsupported
from ortpipe.runtime.xla.operators.elementwise import as_type

FLOAT = 1  # ONNX's code for float32


def _along(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return the operator for a function along one axis."""
    return lambda node, x: function(x, node.get("axis", -1) % max(x.ndim, 1))


def _hardmax(x: Array, axis: int) -> Array:
    line = np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return (line == jnp.argmax(x, axis, keepdims=True)).astype(x.dtype)


def batch_normalization(node: Node, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Result:
    """s·(x − μ) / √(σ² + ε) + b by channel, with the running statistics or, in training, the batch's own."""
    rows = (1, -1, *[1] * (x.ndim - 2)) if x.ndim > 1 else (-1,)
    axes = (0, *range(2, x.ndim))
    trains = bool(node.get("training_mode", 0))
    if trains:
        momentum = np.asarray(node.get("momentum", 0.9)).astype(mean.dtype)
        batch_mean = jnp.mean(x.astype(mean.dtype), axes)
        batch_variance = jnp.mean(jnp.square(x.astype(mean.dtype) - batch_mean.reshape(rows)), axes)
        moved = (mean * momentum + batch_mean * (1 - momentum), variance * momentum + batch_variance * (1 - momentum))
        mean, variance = batch_mean, batch_variance
    y = (x - mean.reshape(rows)) * (_inverse_root(node, variance) * scale).reshape(rows) + bias.reshape(rows)
    return (y.astype(x.dtype), *moved)[: node.outputs] if trains else y.astype(x.dtype)


def layer_normalization(node: Node, x: Array, scale: Array, bias: Array | None = None) -> Result:
    """s·(x − μ) / √(σ² + ε) + b over the last axes."""
    axes = tuple(range(node.get("axis", -1) % x.ndim, x.ndim))
    wide = as_type(x, node.get("stash_type", FLOAT)) if x.dtype != np.float64 else x
    mean, apart, variance = _moments(wide, axes)
    factor = _inverse_root(node, variance)
    y = (apart * factor).astype(x.dtype) * scale
    return (y if bias is None else y + bias, mean, factor)[: node.outputs]


def instance_normalization(node: Node, x: Array, scale: Array, bias: Array) -> Array:
    """Normalize each channel of each row."""
    return _normalized(node, x, scale, bias, x.shape[1])


def group_normalization(node: Node, x: Array, scale: Array, bias: Array) -> Array:
    """Normalize each group of channels of each row; the scale is per channel, before opset 21 per group."""
    scale, bias = (jnp.repeat(part, x.shape[1] // len(part)) for part in (scale, bias))
    return _normalized(node, x, scale, bias, node.get("num_groups"))


def _normalized(node: Node, x: Array, scale: Array, bias: Array, groups: int) -> Array:
    rows = (1, -1, *[1] * (x.ndim - 2))
    _, apart, variance = _moments(x.reshape(x.shape[0], groups, -1), (2,))
    return (apart * _inverse_root(node, variance)).reshape(x.shape) * scale.reshape(rows) + bias.reshape(rows)


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Return μ, x − μ and σ² over axes."""
    mean = jnp.mean(x, axes, keepdims=True)
    return mean, x - mean, jnp.mean((x - mean) * (x - mean), axes, keepdims=True)


def _inverse_root(node: Node, variance: Array) -> Array:
    return jax.lax.rsqrt(variance + np.asarray(node.get("epsilon", 1e-5)).astype(variance.dtype))


def mean_variance_normalization(node: Node, x: Array) -> Array:
    """(x − μ) / σ along axes."""
    _, apart, variance = _moments(x, tuple(node.get("axes") or (0, 2, 3)))
    return apart / (jnp.sqrt(variance) + np.asarray(1e-9).astype(x.dtype))


def lp_normalization(node: Node, x: Array) -> Array:
    """X / ‖x‖ₚ along an axis; 0 where the norm is 0."""
    axis, p = node.get("axis", -1), node.get("p", 2)
    size = jnp.sum(jnp.abs(x), axis, keepdims=True) if p == 1 else jnp.sqrt(jnp.sum(x * x, axis, keepdims=True))
    return jnp.where(size == 0, jnp.zeros((), x.dtype), x / jnp.where(size == 0, jnp.ones((), x.dtype), size))


def local_response_normalization(node: Node, x: Array) -> Array:
    """x / (k + α/size · Σ x²)^β over neighbouring channels."""
    size = node.get("size")
    if size is None:
        raise Unsupported("no size")
    alpha, beta, k = (
        np.asarray(node.get(n, d)).astype(x.dtype) for n, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    padded = jnp.pad(x * x, [(0, 0), ((size - 1) // 2, size // 2), *[(0, 0)] * (x.ndim - 2)])
    total = sum(padded[:, i : i + x.shape[1]] for i in range(size))
    return x / (k + alpha / np.asarray(size).astype(x.dtype) * total) ** beta


def negative_log_likelihood(node: Node, x: Array, label: Array, weight: Array | None = None) -> Array:
    """−w·x at the label, for log-probabilities x [N, C, …]; labels equal to `ignore_index` do not count."""
    ignored = node.get("ignore_index")
    counts = jnp.ones(label.shape, bool) if ignored is None else label != ignored
    place = jnp.where(counts, label, 0)
    place = jnp.where(place < 0, place + x.shape[1], place)
    chosen = jnp.take_along_axis(x, jnp.expand_dims(place, 1), 1, mode="fill")[:, 0]
    weights = jnp.ones(label.shape, x.dtype) if weight is None else jnp.take(weight, place, mode="fill")
    weights = jnp.where(counts, weights, jnp.zeros((), x.dtype))
    losses = -weights * chosen
    losses = jnp.where(counts, losses, jnp.zeros((), x.dtype))
    match node.get("reduction", "mean"):
        case "none":
            return losses
        case "sum":
            return jnp.sum(losses)
    if weight is None and ignored is None:
        return jnp.mean(losses)
    return jnp.sum(losses) / jnp.sum(weights)


def softmax_cross_entropy(node: Node, scores: Array, label: Array, weight: Array | None = None) -> Result:
    """The negative log-likelihood of the softmax of scores [N, C, …], and the log-softmax."""
    logarithms = jax.nn.log_softmax(scores, 1)
    loss = negative_log_likelihood(node, logarithms, label, weight)
    return (loss, logarithms)[: node.outputs]


OPERATORS: Mapping[str, Callable[..., Result]] = {
    "BatchNormalization": batch_normalization,
    "GroupNormalization": group_normalization,
    "Hardmax": _along(_hardmax),
    "InstanceNormalization": instance_normalization,
    "LRN": local_response_normalization,
    "LayerNormalization": layer_normalization,
    "LogSoftmax": _along(jax.nn.log_softmax),
    "LpNormalization": lp_normalization,
    "MeanVarianceNormalization": mean_variance_normalization,
    "NegativeLogLikelihoodLoss": negative_log_likelihood,
    "Softmax": _along(jax.nn.softmax),
    "SoftmaxCrossEntropyLoss": softmax_cross_entropy,
}
