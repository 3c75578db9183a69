"""Entries of values as expressions of C, inside one nest of loops."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortpipe.runtime.c.affine import ZERO, Affine, Index, address, unravel
from ortpipe.runtime.c.elementwise import number
from ortpipe.runtime.c.values import Value

MEMORY = ("state", "row", "constant", "result")  # kinds that are in memory without a loop that writes them
INDEXED = ("gather", "gather_elements", "scatter")  # kinds that read or write at computed indices
OUTSIDE = "outside"  # the variable of C for whether an index was out of bounds
LONG = 60  # characters of an expression that becomes a variable of its own


@dataclass(frozen=True)
class Flat:
    """The position of an entry in C order."""

    position: Affine


@dataclass(frozen=True)
class CLocation:
    """Where a value is: an array of C and the position of its first entry, or a variable."""

    array: str
    first: Affine = ZERO
    variable: bool = False

    def at(self, position: Affine) -> str:
        """Return an entry as C."""
        return self.array if self.variable else f"{self.array}[{position + self.first}]"


class Access:
    """Writes entries of values at the current index of some loops.

    Args:
        places: returns the location of a value in memory; None only collects reads.
        stored: the values in memory.
        bounds: the number of values of each loop variable.
        fresh: returns a name for a variable.
        counts: how often each entry is used; entries that are used twice become variables.
    """

    def __init__(
        self,
        stored: Iterable[Value],
        bounds: Mapping[str, int],
        places: Callable[[Value], CLocation] | None = None,
        fresh: Callable[[str], str] = lambda name: name,
        counts: Mapping[Any, int] | None = None,
    ) -> None:
        self.stored, self.bounds, self.lines = stored, dict(bounds), list[str]()
        self.reads, self.computed = list[tuple[Value, Affine]](), dict[Any, str]()
        self.used, self.counts, self.divides = list[Affine](), Counter[Any](), False
        self._places, self._fresh, self._known = places, fresh, counts

    def at(self, value: Value, index: Index | Flat, times: int = 1) -> str:
        """Return an entry as an expression, which is used several times."""
        value, index = self.resolve(value, index)
        if value.uniform:
            return number(value.info.flat[0], value.dtype)
        if self._in_memory(value):
            position = self.position(value, index)
            if (value, position) not in self.computed:
                return self._read(value, position)
            key: Any = (value, position)
        else:
            key = (value, index)
        self.counts[key] += times
        if key not in self.computed:
            self.computed[key] = self._compute(value, index)
            if self._known is not None and (self._known[key] > 1 or len(self.computed[key]) > LONG):
                self.computed[key] = self.declare(value, self.computed[key])
        return self.computed[key]

    def define(self, value: Value, index: Index, *, named: bool) -> str:
        """Return the new entry of a value in memory, which further expressions then use."""
        text = self._compute(value, index)
        if named and self._known is not None:
            text = self.declare(value, text)
        self.computed[value, address(value.shape, index)] = text
        return text

    def declare(self, value: Value, text: str) -> str:
        """Return the name of a new variable."""
        name = self._fresh(value.name or "t")
        self.lines.append(f"const {value.c_type} {name} = {bare(text)};")
        return name

    def position(self, value: Value, index: Index | Flat) -> Affine:
        """Return the position of an entry."""
        return index.position if isinstance(index, Flat) else address(value.shape, index)

    def resolve(self, value: Value, index: Index | Flat) -> tuple[Value, Index | Flat]:
        """Return the value behind views, and the index there."""
        while not self._in_memory(value) and (value.kind == "view" or (value.kind == "row" and value.args)):
            [x] = value.args
            index = self._behind(value, x, index)
            value = x
        return value, index

    def _in_memory(self, value: Value) -> bool:
        return value in self.stored or (value.kind in MEMORY and not (value.kind == "row" and value.args))

    def _behind(self, value: Value, x: Value, index: Index | Flat) -> Index | Flat:
        """Return the index in the argument of a view."""
        name, *numbers = value.info if value.kind == "view" else ("row",)
        if name == "reshape":
            if isinstance(index, Flat):
                return index
            if [n for n in value.shape if n != 1] == [n for n in x.shape if n != 1]:
                parts = iter([part for part, n in zip(index, value.shape, strict=True) if n != 1])
                return tuple(ZERO if n == 1 else next(parts) for n in x.shape)
            return Flat(address(value.shape, index))
        index = self._listed(value, index)
        if name == "row":
            return (Affine.of(value.level.variable), *index)
        if name == "permute":
            back = np.argsort(numbers[0])
            return tuple(index[i] for i in back)
        if name == "slice":
            return tuple(i * step + Affine((), first) for i, first, step in zip(index, *numbers, strict=True))
        return _broadcast(index, x.shape)

    def _listed(self, value: Value, index: Index | Flat) -> Index:
        return unravel(index.position, value.shape, self.bounds, self._let) if isinstance(index, Flat) else index

    def _let(self, text: str, bound: int) -> Affine:
        self.divides = True
        name = self._fresh("part")
        self.lines.append(f"const int64_t {name} = {text};")
        self.bounds[name] = bound
        return Affine.of(name)

    def _read(self, value: Value, position: Affine) -> str:
        self.reads.append((value, position))
        self.used.append(position)
        return "0" if self._places is None else self._places(value).at(position)

    def _compute(self, value: Value, index: Index | Flat) -> str:
        if value.kind == "map":
            uses = Counter(re.findall(r"\{(\d)\}", value.info))
            alike = all(x.shape == value.shape or x.size == 1 for x in value.args)
            index = index if alike else self._listed(value, index)
            parts = []
            for place, x in enumerate(value.args):
                there = (
                    index
                    if x.shape == value.shape
                    else (ZERO,) * len(x.shape)
                    if isinstance(index, Flat)
                    else _broadcast(index, x.shape)
                )
                parts.append(self.at(x, there, max(uses[str(place)], 1)))
            return str(value.info.format(*parts))
        return str(getattr(self, f"_{value.kind}")(value, self._listed(value, index)))

    def _view(self, value: Value, index: Index) -> str:
        """Return an entry of a view that is copied."""
        return self.at(value.args[0], self._behind(value, value.args[0], index))

    def _gather(self, value: Value, index: Index) -> str:
        (x, places), axis = value.args, value.info
        rank = len(places.shape)
        row = self._chosen(places, index[axis : axis + rank], x.shape[axis])
        return self._guarded(value, row, x.shape[axis], (*index[:axis], row, *index[axis + rank :]))

    def _gather_elements(self, value: Value, index: Index) -> str:
        (x, places), axis = value.args, value.info
        row = self._chosen(places, index, x.shape[axis])
        return self._guarded(value, row, x.shape[axis], (*index[:axis], row, *index[axis + 1 :]))

    def _chosen(self, places: Value, index: Index, size: int) -> Affine:
        """Return a variable for an index, counted from 0; it may be out of bounds."""
        text = self.at(places, index, 2)
        key = ("chosen", places, index)
        if key not in self.computed:
            name = self.computed[key] = self._fresh("chosen")
            self.lines.append(f"const int64_t {name} = {text} < 0 ? {text} + {size} : {text};")
            self.lines.append(f"{OUTSIDE} |= {name} < 0 || {name} >= {size};")
            self.bounds[name] = size
        return Affine.of(self.computed[key])

    chosen = _chosen

    def broadcast(self, value: Value, index: Index) -> str:
        """Return the entry that an index of a larger shape has."""
        return self.at(value, _broadcast(index, value.shape))

    @property
    def final(self) -> bool:
        """Whether entries become variables."""
        return self._known is not None

    def _guarded(self, value: Value, row: Affine, size: int, index: Index) -> str:
        """Return an entry, or 0 out of bounds, where the outputs become nan, which training reports."""
        return f"({row} >= 0 && {row} < {size} ? {self.at(value.args[0], index)} : 0)"

    def _pad(self, value: Value, index: Index) -> str:
        x, filling = value.args
        inner = [part + Affine((), -front) for part, front in zip(index, value.info, strict=True)]
        tests = [
            f"{part} >= 0 && {part} < {n}" for part, n, m in zip(inner, x.shape, value.shape, strict=True) if n != m
        ]
        self.used.extend(inner)  # tests hold for these loops only
        self.divides = True
        return f"({' && '.join(tests)} ? {self.at(x, tuple(inner))} : {self.at(filling, ())})"

    def _draw(self, value: Value, index: Index) -> str:
        position = address(value.shape, index)
        self.used.append(position)
        return f"uniform(key{value.info}, (uint64_t) ({position}))"


def _broadcast(index: Index, shape: tuple[int, ...]) -> Index:
    """Return the index in an array that is broadcast."""
    last = index[len(index) - len(shape) :]
    return tuple(ZERO if n == 1 else part for part, n in zip(last, shape, strict=True))


def bare(text: str) -> str:
    """Return an expression without the parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1]
