"""Steps in Python with the random numbers of compiled ones: Threefry-2x32 with 20 rounds (Salmon et al. 2011)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from ortpipe.artifact import Arrays
from ortpipe.graph import having
from ortpipe.runtime.node_order import in_order

RANDOM = having("random")
TURNS = ((13, 15, 26, 6), (17, 29, 16, 24))
Draw = Callable[[onnx.NodeProto, tuple[int, ...]], np.ndarray]


def threefry(key: int, counters: np.ndarray) -> np.ndarray:
    """Return 64 random bits for each 64-bit counter.

    >>> hex(threefry(0, np.zeros(1, np.uint64))[0])
    '0x6b20015999ba4efe'
    """
    keys = [np.uint32(key >> 32), np.uint32(key & 0xFFFFFFFF)]
    keys.append(keys[0] ^ keys[1] ^ np.uint32(0x1BD11BDA))
    a, b = (counters >> np.uint64(32)).astype(np.uint32) + keys[0], counters.astype(np.uint32) + keys[1]
    for number in range(5):
        for turn in TURNS[number % 2]:
            a = a + b
            b = (b << np.uint32(turn) | b >> np.uint32(32 - turn)) ^ a
        a = a + keys[(number + 1) % 3]
        b = b + keys[(number + 2) % 3] + np.uint32(number + 1)
    return a.astype(np.uint64) << np.uint64(32) | b


def drawn_steps(step: onnx.ModelProto, state: Arrays, feeds: Sequence[Arrays], key: int) -> list[np.ndarray]:
    """Return the state and the losses after some steps, in ONNX's reference implementation.

    Args:
        step: the graph of a step, whose outputs are the next state and the loss.
        state: the values that the first step starts from.
        feeds: the other inputs of each step.
        key: of the random numbers. Those of a step have its number folded in, those of a node its own in the step.

    Raises:
        NotImplementedError: the reference implementation lacks an operator.
    """
    nodes = [node.output[0] for node in in_order(step.graph.node) if node.op_type in RANDOM]
    values, losses = [*state.values()], list[np.ndarray]()

    def draw(node: onnx.NodeProto, shape: tuple[int, ...]) -> np.ndarray:
        of_node = _folded(_folded(key, len(losses)), nodes.index(node.output[0]))
        bits = threefry(of_node, np.arange(np.prod(shape), dtype=np.uint64))
        numbers = (bits >> np.uint64(32) ^ bits).astype(np.uint32) >> 9
        return (numbers.astype(np.float32) * np.float32(2**-23)).reshape(shape)

    reference = ReferenceEvaluator(step, new_ops=_operators(draw))
    with np.errstate(all="ignore"):
        for fed in feeds:
            results: Any = reference.run(None, {**dict(zip(state, values, strict=True)), **fed})
            *values, loss = results
            losses.append(loss)
    return [*values, np.array(losses)]


def _folded(key: int, number: int) -> int:
    return int(threefry(key, np.array([number], np.uint64))[0])


def _operators(draw: Draw) -> list[type[Any]]:
    """Return the operators that draw, as compiled steps compute them."""

    def dropout(op: Any, x: Any, ratio: Any = 0.5, training: Any = False, **_: Any) -> tuple[Any, ...]:
        stays = draw(op.onnx_node, x.shape) >= np.float32(ratio) if training else np.ones(x.shape, bool)
        return np.where(stays, x / np.asarray(1 - ratio if training else 1, x.dtype), np.zeros((), x.dtype)), stays

    def uniform(op: Any, x: Any, low: float = 0.0, high: float = 1.0, **_: Any) -> tuple[Any, ...]:
        return ((draw(op.onnx_node, x.shape) * np.float32(high - low) + np.float32(low)).astype(x.dtype),)

    def bernoulli(op: Any, x: Any, **_: Any) -> tuple[Any, ...]:
        return ((draw(op.onnx_node, x.shape) < x).astype(x.dtype),)

    runs = {"Dropout": dropout, "RandomUniformLike": uniform, "Bernoulli": bernoulli}
    return [type(name, (OpRun,), {"op_domain": "", "_run": run}) for name, run in runs.items()]
