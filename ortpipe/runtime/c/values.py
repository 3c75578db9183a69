"""The values between a graph and C: each is an expression, a view, a sum, a product, … of other values."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ortpipe.errors import EngineError
from ortpipe.runtime.c.strides import Strides, broadcast, contiguous

C_TYPES: Mapping[str, str] = {
    "float32": "float",
    "float64": "double",
    "bool": "bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for bits in (8, 16, 32, 64) for sign in ("", "u")},
}
MEMORY = ("state", "row", "constant", "result")  # kinds that are in memory without a loop that writes them
SMALL = 1024  # entries up to which constants are in the text


def refused(what: str) -> EngineError:
    """Return the error for a graph that is not compiled."""
    return EngineError(
        "{key}=c compiles dense networks whose sizes are known before the run.",
        got=what,
        fix="Set {key}=onnxruntime, which supports all operators, or {key}=xla.",
        key="engine",
    )


class NotCompiled(Exception):
    """This form of an operator is not compiled; the message names it."""


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of arrays that are broadcast."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise NotCompiled(f"sizes that do not broadcast: {' and '.join(str([*shape]) for shape in shapes)}") from None


@dataclass(eq=False)
class Level:
    """A loop over steps."""

    parent: Level | None = None
    count: int | None = None  # of steps; None: an argument of the function
    states: list[Value] = field(default_factory=list)
    following: list[Value] = field(default_factory=list)  # the next value of each state
    outputs: list[Value] = field(default_factory=list)  # one entry of each stacked output
    results: list[Value] = field(default_factory=list)  # outside: the last states, and the stacked outputs

    @property
    def depth(self) -> int:
        """The number of loops around."""
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def variable(self) -> str:
        """The number of the step in C."""
        return f"turn{self.depth}" if self.depth else "step"

    @property
    def key(self) -> str:
        """The key of random numbers in C."""
        return f"key_of_{self.variable}"


@dataclass(eq=False)
class Value:
    """A value of known shape and type.

    Kinds, with their `info`: `constant` (its array), `state` and `row` of a level (its number), `map` (a template of
    C), `view` (strides in its argument), `reduce` (operator, axes), `product` (α, β; of matrices), `join` (axis),
    `gather` and `scatter` (see `operators.py`), `scan` (a level), `result` (its number), `draw` (its node's number).
    """

    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    args: tuple[Value, ...] = ()
    info: Any = None
    level: Level = field(default_factory=Level)
    number: int = 0
    name: str = ""

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)

    @functools.cached_property
    def uniform(self) -> bool:
        """Whether it is a constant of one number, bit by bit: 0 and −0 differ."""
        if self.kind != "constant" or self.size == 0:
            return False
        return bool(self.info.tobytes() == self.info.flat[0].tobytes() * self.size)

    @property
    def c_type(self) -> str:
        """The type of an entry."""
        return C_TYPES[self.dtype.name]

    @property
    def plain(self) -> Value:
        """The value without reshapes around it."""
        value = self
        while value.kind == "view" and value.size == value.args[0].size and value.info == contiguous(value.shape):
            value = value.args[0]
        return value


class ValueTable:
    """Makes values; equal ones are made once. They are of the level `step`, unless an argument is of one inside."""

    def __init__(self, step: Level) -> None:
        self.step, self._made, self._count = step, dict[Any, Value](), 0
        self.name = ""  # of new values

    def make(
        self, kind: str, shape: Iterable[int], dtype: Any, *args: Value, info: Any = None, level: Level | None = None
    ) -> Value:
        """Return a value; its level is the innermost one of its arguments."""
        key = (kind, tuple(shape), np.dtype(dtype), args, info, level)
        if key not in self._made:
            self._made[key] = self._new(*key)
        return self._made[key]

    def _new(self, kind: str, shape: Any, dtype: Any, args: Any, info: Any, level: Level | None) -> Value:
        if dtype.name not in C_TYPES:
            raise NotCompiled(f"values of type {dtype.name}")
        inner = max([level or self.step, *(x.level for x in args)], key=lambda one: one.depth)
        self._count += 1
        return Value(kind, shape, dtype, args, info, inner, self._count, self.name)

    def copy(self, x: Value, level: Level) -> Value:
        """Return a new value with the entries of x."""
        return self._new("map", x.shape, x.dtype, (x,), "{0}", level)

    def constant(self, array: Any, dtype: Any = None) -> Value:
        """Return a constant."""
        array = np.asarray(array, dtype)
        value = self.make("constant", array.shape, array.dtype, info=array.tobytes())
        value.info = array
        return value

    def map(self, template: str, *args: Value, dtype: Any = None) -> Value:
        """Return an expression of the entries of arguments, which are broadcast; `$` is f for float32."""
        shape = broadcast_shapes(*(x.shape for x in args))
        suffix = "f" if args[0].dtype == np.float32 else ""
        return self.make("map", shape, dtype or args[0].dtype, *args, info=template.replace("$", suffix))

    def reduce(self, operator: str, x: Value, axes: Iterable[int]) -> Value:
        """Return a sum, product, maximum or minimum over axes, which stay with size 1."""
        among = tuple(sorted({axis % max(len(x.shape), 1) for axis in axes}))
        if all(x.shape[axis] == 1 for axis in among):
            return x
        shape = [1 if axis in among else n for axis, n in enumerate(x.shape)]
        return self.make("reduce", shape, x.dtype, x, info=(operator, among))

    def view(self, x: Value, shape: Iterable[int], strides: Strides) -> Value:
        """Return entries of x, by their positions."""
        shape = tuple(shape)
        if shape == x.shape and strides == contiguous(shape):
            return x
        return self.make("view", shape, x.dtype, x, info=strides)

    def reshape(self, x: Value, shape: Iterable[int]) -> Value:
        """Return the same entries in another shape."""
        shape = tuple(shape)
        return self.view(x.plain if x.plain.shape == shape else x, shape, contiguous(shape))

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        """Return x, repeated along new axes and axes of size 1."""
        return self.view(x, shape, broadcast(x.shape, shape))

    def permute(self, x: Value, order: Sequence[int]) -> Value:
        """Return x with its axes in an order."""
        steps = contiguous(x.shape).steps
        return self.view(x, [x.shape[i] for i in order], Strides(0, tuple(steps[i] for i in order)))


def behind_views(value: Value) -> Value:
    """Return the value behind all views."""
    while value.kind == "view":
        value = value.args[0]
    return value


def walk(values: Iterable[Value]) -> Iterator[Value]:
    """Yield the values and all that they depend on, each once."""
    seen, stack = set[Value](), list(values)
    while stack:
        value = stack.pop()
        if value not in seen:
            seen.add(value)
            yield value
            stack += value.args
            if value.kind == "scan":
                stack += [*value.info.following, *value.info.outputs]
