"""JAX: the whole epoch, its gather included, is one jitted scan with donated weights and state."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import numpy as np

if sys.argv[3] == "1":
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
from plain import DEVICE, Epoch, Weights, main

os.environ["JAX_PLATFORMS"] = DEVICE
os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"  # a GPU would round float32 to fewer bits
import jax
import jax.numpy as jnp

Arrays = list[jax.Array]
State = tuple[jax.Array, Arrays, Arrays]
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


def scores(problem: SimpleNamespace, weights: Arrays, rows: jax.Array) -> jax.Array:
    """Return the network's raw output."""
    if problem.kind == "cnn":
        image = rows.reshape(-1, 1, 8, 8)
        for i in (0, 2):
            image = jax.lax.conv_general_dilated(image, weights[i], (1, 1), "SAME", dimension_numbers=LAYOUT)
            image = jax.nn.relu(image + weights[i + 1][:, None, None])
            if i == 0:
                image = image.reshape(*image.shape[:2], 4, 2, 4, 2).max((3, 5))
        rows, weights = image.reshape(len(image), -1), weights[4:]
    for i in range(0, len(weights), 2):
        rows = rows @ weights[i] + weights[i + 1]
        if i < len(weights) - 2:
            rows = jax.nn.relu(rows)
    return rows


LAYOUT = ("NCHW", "OIHW", "NCHW")


def build(problem: SimpleNamespace, threads: int) -> tuple[Epoch, Weights]:
    """Return the epoch and the weights."""
    X, y = jnp.asarray(problem.X), jnp.asarray(problem.y)

    def loss(weights: Arrays, rows: jax.Array, truth: jax.Array) -> jax.Array:
        output = scores(problem, weights, rows)
        if problem.classes:
            return -jnp.take_along_axis(jax.nn.log_softmax(output), truth[:, None], 1).mean()
        return jnp.mean((output[:, 0] - truth) ** 2)

    def step(carried: tuple[Arrays, State], batch: tuple[jax.Array, jax.Array]) -> tuple:
        weights, state = carried
        value, gradients = jax.value_and_grad(loss)(weights, *batch)
        if problem.optimizer == "sgd":
            return ([w - problem.lr * g for w, g in zip(weights, gradients, strict=True)], state), value
        count, means, squares = state[0] + 1, *state[1:]
        means = [BETA1 * m + (1 - BETA1) * g for m, g in zip(means, gradients, strict=True)]
        squares = [BETA2 * s + (1 - BETA2) * g * g for s, g in zip(squares, gradients, strict=True)]
        first, second = 1 - BETA1**count, 1 - BETA2**count
        weights = [
            w - problem.lr * (m / first) / (jnp.sqrt(s / second) + EPSILON)
            for w, m, s in zip(weights, means, squares, strict=True)
        ]
        return (weights, (count, means, squares)), value

    def one(carried: tuple[Arrays, State], X: jax.Array, y: jax.Array, index: jax.Array) -> tuple:
        carried, losses = jax.lax.scan(step, carried, (X[index], y[index]))
        return carried, losses.mean()

    compiled = jax.jit(one, donate_argnums=0)
    weights = [jnp.asarray(w) for w in problem.weights]
    zeros = [[jnp.zeros_like(w) for w in weights] for _ in range(2)]
    carried = (weights, (jnp.float32(0), *zeros))

    def epoch(index: np.ndarray) -> float:
        nonlocal carried
        carried, value = compiled(carried, X, y, index)
        return float(value)

    return epoch, lambda: dict(zip(problem.names, map(np.asarray, carried[0]), strict=True))


if __name__ == "__main__":
    main(build)
