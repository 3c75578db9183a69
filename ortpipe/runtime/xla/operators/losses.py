"""ONNX's loss operators."""

from collections.abc import Callable, Mapping

import jax.numpy as jnp

from ortpipe.runtime.xla.node import Array, Node, Result
from ortpipe.runtime.xla.operators.normalization import log_softmax


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
    logarithms = log_softmax(scores, 1)
    loss = negative_log_likelihood(node, logarithms, label, weight)
    return (loss, logarithms)[: node.outputs]


OPERATORS: Mapping[str, Callable[..., Result]] = {
    "NegativeLogLikelihoodLoss": negative_log_likelihood,
    "SoftmaxCrossEntropyLoss": softmax_cross_entropy,
}
