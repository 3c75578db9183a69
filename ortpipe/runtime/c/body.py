"""Entries of values as statements of C, inside one nest of loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ortpipe.runtime.c.elementwise import WRONG, number
from ortpipe.runtime.c.strides import Shape, Strides, broadcast, composed, contiguous
from ortpipe.runtime.c.values import MEMORY, Value, behind_views

ANYWHERE = Strides(-1, ())  # entries that an index or a product reads


@dataclass(frozen=True)
class Location:
    """Where a value is: an array of C and an offset in it, or a variable."""

    array: str
    offset: str = ""  # an expression
    variable: bool = False

    def at(self, position: str) -> str:
        """Return an entry as C."""
        return self.array if self.variable else f"{self.array}[{self._plus(position) or '0'}]"

    def pointer(self, position: str) -> str:
        """Return the address of an entry as C."""
        return f"&{self.array}" if self.variable else " + ".join(filter(None, [self.array, self._plus(position)]))

    def _plus(self, position: str) -> str:
        return " + ".join(text for text in (position, self.offset) if text not in ("", "0"))


class NotStrided(Exception):
    """A view has no constant steps between the entries that loops read, so it must be copied."""

    def __init__(self, value: Value) -> None:
        super().__init__()
        self.value = value


class LoopBody:
    """The statements inside some loops.

    Args:
        domain: the number of iterations of each loop.
        stored: the values in memory.
        variables: the variables of the loops.
        place: returns where a value in memory is; None: only note what is read.
        fresh: returns a name for a variable.
        merged: the loops that become one, as groups of neighbours; the domain is that of the loops before.

    Attributes:
        lines: statements.
        stores: statements that write memory, which come after the others.
        reads: the entries that are read in memory.
        used: the positions of all entries.
        names: entries as expressions.
    """

    def __init__(
        self,
        domain: Shape,
        stored: Collection[Value],
        variables: Sequence[str] = (),
        place: Callable[[Value], Location] = lambda value: Location("memory"),
        fresh: Callable[[str], str] = lambda name: name,
        merged: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._groups = merged if merged is not None else [[axis] for axis in range(len(domain))]
        self.domain = tuple(math.prod(domain[axis] for axis in group) for group in self._groups)
        self.variables = variables or loop_names(len(self.domain))
        self._given, self._stored, self.place, self._fresh = domain, stored, place, fresh
        self.lines, self.stores = list[str](), list[str]()
        self.reads, self.used, self.names = list[tuple[Value, Strides]](), list[Strides](), dict[object, str]()

    def at(self, strides: Strides) -> Strides:
        """Return positions by the loops before any are merged as positions by these loops."""
        self.used.append(strides)
        return Strides(strides.first, tuple(strides.steps[group[-1]] for group in self._groups))

    def merged(self, apart: int = 0) -> list[list[int]]:
        """Return groups of loops that can be one, as all entries follow each other; the first `apart` are not merged
        with the rest."""
        groups = [[axis] for axis in range(len(self.domain))]
        for axis in reversed(range(1, len(self.domain))):
            if axis != apart and all(s.steps[axis - 1] == s.steps[axis] * self.domain[axis] for s in self.used):
                groups[axis - 1 : axis + 1] = [groups[axis - 1] + groups[axis]]
        return groups

    @property
    def here(self) -> Strides:
        """The positions in a value whose entries are those of the domain."""
        return self.at(contiguous(self._given))

    def text(self, value: Value, at: Strides) -> str:
        """Return an entry in memory as C."""
        return self.place(value).at(at.text(self.variables))

    def entry(self, value: Value, at: Strides) -> str:
        """Return an entry as an expression without operators."""
        if (behind := behind_views(value)).uniform:
            return number(behind.info.flat[0], value.dtype)
        value, at = self.resolve(value, at)
        key = (value, at)
        if key not in self.names:
            if self.in_memory(value):
                self.read(value, at)
                return self.text(value, at)
            self.names[key] = self.declare(value, self.compute(value, at))
        return self.names[key]

    def read(self, value: Value, at: Strides) -> None:
        """Note that entries in memory are read; the rows of a step are part of the array of all steps."""
        while value.kind == "row" and value.args:
            value = value.args[0].plain
        self.reads.append((value, at))

    def in_memory(self, value: Value) -> bool:
        """Return whether a value is read in memory."""
        return value in self._stored or value.kind in MEMORY

    def resolve(self, value: Value, at: Strides) -> tuple[Value, Strides]:
        """Return the value behind views, and the positions there."""
        while value.kind == "view" and value not in self._stored:
            at, value = self.behind(value, at, value.info), value.args[0]
        return value, at

    def behind(self, value: Value, at: Strides, inner: Strides) -> Strides:
        """Return the positions in an array from which a value reads its entries at `inner`."""
        positions = composed(at, self.domain, inner, value.shape)
        if positions is None:
            raise NotStrided(value)
        self.used.append(positions)
        return positions

    def declare(self, value: Value, text: str, name: str = "") -> str:
        """Return the name of a new variable."""
        name = name or self._fresh(value.name or "t")
        self.lines.append(f"const {value.c_type} {name} = {text};")
        return name

    def compute(self, value: Value, at: Strides) -> str:
        """Return an entry of a value that is not read in memory."""
        return str(getattr(self, f"_{value.kind}")(value, at))

    def _map(self, value: Value, at: Strides) -> str:
        return value.info.format(*(self.argument(value, x, at) for x in value.args))

    def argument(self, value: Value, x: Value, at: Strides) -> str:
        """Return the entry of an argument that is broadcast."""
        if behind_views(x).uniform:
            return self.entry(x, at)
        return self.entry(x, self.behind(value, at, broadcast(x.shape, value.shape)))

    def _view(self, value: Value, at: Strides) -> str:
        return self.entry(value.args[0], self.behind(value, at, value.info))

    def _draw(self, value: Value, at: Strides) -> str:
        return f"uniform(key{value.info}, (uint64_t) ({at.text(self.variables)}))"

    def _gather(self, value: Value, at: Strides) -> str:
        """Return an entry, or 0 out of bounds, where the outputs become nan, which training reports."""
        (x, places), (inner, step, size) = value.args, value.info
        place = self.chosen(places, at, size)
        x, first = self.resolve(x, self.behind(value, at, inner))
        self.read(x, ANYWHERE)
        position = f"{place} * {step} + {first.text(self.variables)}"
        return f"{within(place, size)} ? {self.place(x).at(position)} : 0"

    def chosen(self, places: Value, at: Strides, size: int) -> str:
        """Return a variable for an index, counted from 0."""
        text, key = self.entry(places, at), ("chosen", places, at, size)
        if key not in self.names:
            name = self.names[key] = self._fresh("chosen")
            self.lines.append(f"const int64_t {name} = {text} < 0 ? {text} + {size} : {text};")
            self.lines.append(f"{WRONG} |= !({within(name, size)});")
        return self.names[key]


def within(place: str, size: int) -> str:
    """Return whether an index is in bounds."""
    return f"{place} >= 0 && {place} < {size}"


def loop_names(count: int) -> list[str]:
    """Return the variables of loops, from the outermost."""
    return [f"i{n}" if count > 4 else "ijkl"[n] for n in range(count)]
