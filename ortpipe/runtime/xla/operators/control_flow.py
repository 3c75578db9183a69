"""Operators with subgraphs."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ortpipe.runtime.xla.node import Array, Node, Result, Unsupported, constant

lax = jax.lax


def if_(node: Node, condition: Array) -> Result:
    """Run one of two graphs; if the condition is only known at run time, both must give equal shapes."""
    assert node.run is not None
    run = node.run
    if isinstance(condition, np.ndarray):
        return tuple(run(node.get("then_branch" if condition.reshape(()) else "else_branch")))
    branches = [
        lambda name=name: tuple(map(jnp.asarray, run(node.get(name)))) for name in ("then_branch", "else_branch")
    ]
    try:
        return lax.cond(jnp.asarray(condition).reshape(()), *branches)
    except TypeError as error:
        raise Unsupported("branches whose results differ in shape or type") from error


def scan(node: Node, *inputs: Array) -> Result:
    """Run a graph once per step over scanned inputs, with carried values."""
    assert node.run is not None
    run, body, count = node.run, node.get("body"), node.get("num_scan_inputs")
    carried, scanned = inputs[: len(inputs) - count], list(inputs[len(inputs) - count :])
    axes, backwards = node.get("scan_input_axes") or [0] * count, node.get("scan_input_directions") or [0] * count
    for i, (axis, back) in enumerate(zip(axes, backwards, strict=True)):
        moved = jnp.moveaxis(scanned[i], axis, 0)
        scanned[i] = jnp.flip(moved, 0) if back else moved

    def step(values: tuple[Array, ...], scanned: tuple[Array, ...]) -> Any:
        number, *rows = scanned
        return _carried_on(values, run(body, *values, *rows, number=number))

    numbers = np.arange(scanned[0].shape[0], dtype=np.int32)
    ended, stacked = lax.scan(step, tuple(map(jnp.asarray, carried)), (numbers, *scanned))
    stacked = list(stacked)
    axes, backwards = (node.get(f"scan_output_{name}") or [0] * len(stacked) for name in ("axes", "directions"))
    for i, (axis, back) in enumerate(zip(axes, backwards, strict=True)):
        stacked[i] = jnp.moveaxis(jnp.flip(stacked[i], 0) if back else stacked[i], 0, axis)
    return (*ended, *stacked)


def loop(node: Node, trips: Array | None, condition: Array | None, *carried: Array) -> Result:
    """Run a graph for a known number of iterations; conditions that end a loop early are not supported."""
    assert node.run is not None
    run, body = node.run, node.get("body")
    if trips is None:
        raise Unsupported("a Loop that only ends by a condition")
    count = int(constant(trips, "a number of rounds"))
    if condition is not None and not constant(condition, "a condition").reshape(()):
        count = 0
    goes_on = np.array(True)

    def step(values: tuple[Array, ...], number: Array) -> Any:
        still, *results = run(body, number, goes_on, *values, number=number.astype(np.int32))
        if not (isinstance(still, np.ndarray) and still.reshape(())):
            raise Unsupported("a Loop that ends by a condition")
        return _carried_on(values, results)

    ended, stacked = lax.scan(step, tuple(map(jnp.asarray, carried)), np.arange(count))
    return (*ended, *stacked)


def _carried_on(values: tuple[Array, ...], results: list[Array]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Return a step's results as the next carried values, in the types of the old ones, and the outputs of the step."""
    following = (jnp.asarray(y).astype(x.dtype) for x, y in zip(values, results, strict=False))
    return tuple(following), tuple(map(jnp.asarray, results[len(values) :]))


OPERATORS: Mapping[str, Callable[..., Result]] = {"If": if_, "Loop": loop, "Scan": scan}
