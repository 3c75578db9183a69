"""If, Loop and Scan, whose bodies are drawn from the operators that keep a value's shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from fuzz.forms import elementwise
from fuzz.sketch import Rejected, Sketch


def grow(s: Sketch, count: int) -> str:
    """Write some nodes into a subgraph; return the last value."""
    for _ in range(count):
        mark = s.mark()
        try:
            s.pool.append(elementwise.FORMS[s.choose(elementwise.INSIDE)](s))
        except Rejected:
            s.back(mark)
    return s.pool[-1]


def fitted(s: Sketch, value: str, to: str) -> str:
    """Return a bounded value of another's shape."""
    if s.of(value) != s.of(to):
        value = s.op("ReduceMean", [value], keepdims=0) if s.rank(value) else value
        value = s.op("Add", [to, value])
    return s.op("Tanh", [value])


def captured(s: Sketch) -> list[str]:
    """Return values of outside, one or none."""
    assert s.around is not None
    return [s.choose(s.around.pool)] if s.around.pool and s.flag(0.7) else []


def branches(s: Sketch) -> str | list[str]:
    """One of two graphs of what is outside."""
    x = s.x()
    made = []
    count = s.size(1, 2)
    for _ in range(2):
        inner = s.inner()
        inner.pool = [x, *captured(inner)]
        ends = []
        for _ in range(count):
            grow(inner, s.size(1, 3))
            ends.append(fitted(inner, inner.pool[-1], x))
        made.append(inner.body([], ends))
    total = s.op("ReduceSum", [x], keepdims=0)
    condition = s.op("Greater", [total, s.number(0.0)]) if s.flag(0.7) else s.const(s.flag(), np.bool_)
    return s.op("If", [condition], count, then_branch=made[0], else_branch=made[1])


def scan(s: Sketch) -> list[str]:
    """States along the slices of a value."""
    x = s.x(least=1, most=3)
    axis = s.size(0, s.rank(x) - 1)
    item = np.take(s.values[x], 0, axis)
    first = s.source(item.shape)
    inner = s.inner()
    state, piece = inner.placeholder(s.values[first]), inner.placeholder(item)
    inner.pool = [state, piece, *captured(inner)]
    grow(inner, s.size(1, 4))
    after = fitted(inner, inner.pool[-1], state)
    end = inner.op("Add", [after, s.choose([state, piece])])
    given: dict[str, Any] = {"scan_input_axes": [axis]} if axis or s.flag() else {}
    if s.flag(0.4):
        given["scan_input_directions"] = [1]
    if s.flag(0.3):
        given["scan_output_directions"] = [1]
    if s.flag(0.3):
        given["scan_output_axes"] = [s.size(0, item.ndim)]
    body = inner.body([state, piece], [after, end])
    return s.op("Scan", [first, x], 2, body=body, num_scan_inputs=1, **given)


def loop(s: Sketch) -> list[str]:
    """A state that changes a few times, with a value of each round."""
    first = s.x(most=3)
    inner = s.inner()
    number, going = inner.placeholder(np.int64(0)), inner.placeholder(np.bool_(True))
    state = inner.placeholder(s.values[first])
    inner.pool = [state, *captured(inner)]
    if s.flag(0.4):
        inner.pool.append(inner.op("Cast", [number], to=TensorProto.FLOAT))
    grow(inner, s.size(1, 4))
    after = fitted(inner, inner.pool[-1], state)
    each = inner.op("Mul", [after, state])
    again = inner.op("Identity", [going])
    body = inner.body([number, going, state], [again, after, each])
    condition = s.choose([None, s.const(True, np.bool_)])
    return s.op("Loop", [s.const(s.size(1, 3)), condition, first], 2, body=body)


FORMS: dict[str, Callable[[Sketch], Any]] = {"If": branches, "Loop": loop, "Scan": scan}
