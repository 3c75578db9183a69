"""The values between a graph and C: each is an expression, a view, a sum, a product, … of other values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ortpipe.errors import EngineError

C_TYPES: Mapping[str, str] = {
    "float32": "float",
    "float64": "double",
    "bool": "bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for bits in (8, 16, 32, 64) for sign in ("", "u")},
}


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


@dataclass(eq=False)
class Level:
    """A loop over steps, or no loop at depth 0."""

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
        return "step" if self.depth == 1 else f"turn{self.depth}"


@dataclass(eq=False)
class Value:
    """A value of known shape and type.

    Kinds, with their `info`: `constant` (its array), `state` and `row` of a level (its number), `map` (a template of
    C), `view` (see `access.py`), `reduce` (operator, axes), `product` (α, β; of matrices), `join` (axis), `scatter`
    (sign, axis), `scan` (a level), `result` (its number), `gather` (axis), `pad` (pads in front), `draw` (its node's
    number).
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

    @property
    def uniform(self) -> bool:
        """Whether it is a constant of one number, bit by bit: 0 and −0 differ."""
        return self.kind == "constant" and self.size > 0 and len({x.tobytes() for x in self.info.flat}) == 1

    @property
    def c_type(self) -> str:
        """The type of an entry."""
        return C_TYPES[self.dtype.name]


class ValueTable:
    """Makes values; equal ones are made once."""

    def __init__(self, top: Level) -> None:
        self.top, self._made, self._count = top, dict[Any, Value](), 0
        self.name = ""  # of new values

    def make(
        self, kind: str, shape: Iterable[int], dtype: Any, *args: Value, info: Any = None, level: Level | None = None
    ) -> Value:
        """Return a value; its level is the innermost one of its arguments."""
        key = (kind, tuple(shape), np.dtype(dtype), args, info, level)
        if key not in self._made:
            if key[2].name not in C_TYPES:
                raise NotCompiled(f"values of type {key[2].name}")
            inner = max([level or self.top, *(x.level for x in args)], key=lambda one: one.depth)
            self._count += 1
            self._made[key] = Value(kind, key[1], key[2], args, info, inner, self._count, self.name)
        return self._made[key]

    def constant(self, array: Any, dtype: Any = None) -> Value:
        """Return a constant."""
        array = np.asarray(array, dtype)
        value = self.make("constant", array.shape, array.dtype, info=array.tobytes())
        value.info = array
        return value

    def map(self, template: str, *args: Value, dtype: Any = None) -> Value:
        """Return an expression of the entries of arguments, which are broadcast; `$` is f for float32."""
        shape = np.broadcast_shapes(*(x.shape for x in args))
        kind = np.dtype(dtype or args[0].dtype)
        suffix = "f" if args[0].dtype == np.float32 else ""
        if kind.kind in "iu" and not template.startswith(("{0}", "((")):
            template = f"(({C_TYPES[kind.name]}) {template})"  # C computes with wider integers
        return self.make("map", shape, kind, *args, info=template.replace("$", suffix))

    def reduce(self, operator: str, x: Value, axes: Iterable[int]) -> Value:
        """Return a sum, product, maximum or minimum over axes, which stay with size 1."""
        among = tuple(sorted({axis % max(len(x.shape), 1) for axis in axes}))
        if all(x.shape[axis] == 1 for axis in among):
            return x
        shape = [1 if axis in among else n for axis, n in enumerate(x.shape)]
        return self.make("reduce", shape, x.dtype, x, info=(operator, among))

    def reshape(self, x: Value, shape: Iterable[int]) -> Value:
        """Return the same entries in another shape."""
        shape = tuple(shape)
        if x.kind == "view" and x.info == ("reshape",):
            x = x.args[0]
        return x if shape == x.shape else self.make("view", shape, x.dtype, x, info=("reshape",))


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
