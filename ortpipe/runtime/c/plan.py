"""Decide which values are in memory, which loops compute them, and where each of them is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

from ortpipe.runtime.c.access import MEMORY, Access
from ortpipe.runtime.c.affine import ZERO, Affine, Index, address
from ortpipe.runtime.c.values import Level, Value, ValueTable, walk

ALWAYS = {"reduce", "product", "join", "scatter", "result"}  # kinds that are computed by loops of their own
CHEAP = 3  # operations that are rather repeated than indexed in memory
ALIGNED = 64  # bytes
MANY = 4  # rows of a product for each row that it sums over
SHORT = 32  # entries
CALLS = re.compile(r"[a-z0-9]+\(")


@dataclass(eq=False)
class Kernel:
    """One nest of loops, or a product, which computes some values."""

    kind: str  # `loops`, or the kind of its only value
    domain: tuple[int, ...] = ()  # of loops: sizes other than 1
    values: list[Value] = field(default_factory=list)


def domain_index(shape: Sequence[int], variables: Sequence[Affine]) -> Index:
    """Return the index of an entry, with one variable for each size other than 1."""
    rest = iter(variables)
    return tuple(ZERO if n == 1 else next(rest) for n in shape)


def loop_names(count: int) -> list[Affine]:
    """Return the variables of loops, from the outermost."""
    return [Affine.of(f"i{n}" if count > 4 else "ijkl"[n]) for n in range(count)]


def accumulates(value: Value) -> bool:
    """Return whether a sum can be added to entry by entry, because the last axis stays."""
    if value.kind != "reduce":
        return False
    wide = [axis for axis, n in enumerate(value.args[0].shape) if n != 1]
    return bool(wide) and wide[-1] not in value.info[1]


def in_one_loop(value: Value) -> bool:
    """Return whether a function of short rows needs one loop over all entries, which compilers compute in vectors."""
    rows = value.kind == "map" and len(value.shape) > 1 and 1 < value.shape[-1] < SHORT < value.size
    return rows and bool(CALLS.search(value.info)) and all(x.shape == value.shape for x in value.args)


class Plan:
    """The plan of a program.

    `kernels` are those of each level, in order, `places` where values are, `copied` the states whose next value is
    copied at the end of a step, `sizes` the bytes of each array of the workspace and its place there.
    """

    def __init__(self, values: ValueTable, top: Level, step: Level) -> None:
        self.values, self.top, self.step = values, top, step
        self.levels = [top, step, *(v.info for v in walk([*step.following, *step.outputs]) if v.kind == "scan")]
        for level in self.levels:
            self._fresh_ends(level)
        ends = [x for level in self.levels for x in (*level.following, *level.outputs, *level.results)]
        reached = set(walk(ends))
        self._all = sorted(reached, key=lambda value: value.number)
        self._uses = defaultdict[Value, list[Value]](list)
        for value in self._all:
            for x in value.args:
                self._uses[x].append(value)
        self.stored = self._needed()
        while True:
            self._costs, self._accesses = dict[Value, int](), dict[Value, Access]()
            self.kernels = {level: self._kernels(level) for level in self.levels}
            if not (shared := self._shared()):
                break
            self.stored |= shared
        self.homes, self.copied = self._homes()

    def _fresh_ends(self, level: Level) -> None:
        """Give each next state that differs from its state, and each output, a value of its own in memory."""
        taken = set[Value]()
        for ends in (level.following, level.outputs):
            for place, value in enumerate(ends):
                base = unshaped(value)
                if ends is level.following and base is level.states[place]:
                    continue
                if base.kind in (*MEMORY, "view") or base.level is not level or base in taken:
                    base = self.values.make("map", value.shape, value.dtype, value, info="{0}", level=level)
                    if base in taken:
                        base = self.values.make(
                            "map", value.shape, value.dtype, value, info="{0}" + " " * len(taken), level=level
                        )
                    ends[place] = base
                taken.add(base)

    def _needed(self) -> set[Value]:
        """Return the values that must be in memory."""
        needed = {value for value in self._all if value.kind in ALWAYS}
        for level in self.levels:
            needed |= {unshaped(value) for value in (*level.following, *level.outputs)}
        for value in self._all:
            for place, x in enumerate(value.args):
                base = unshaped(x)
                inner = value.level is not x.level and x.level is not self.top
                wider = value.size > x.size or value.kind in ("product", "scatter")
                indexed = value.kind in ("gather", "gather_elements", "pad") and place == 0
                wider = wider or in_one_loop(value)
                if base.kind not in (*MEMORY, "scan") and value.kind != "scan" and (inner or wider or indexed):
                    needed.add(behind(x) if value.kind == "product" and place < 2 else base)
        needed = {value for value in needed if value.kind not in (*MEMORY, "scan") or value.kind == "result"}
        for value in self._all:
            if value.kind == "product":
                needed |= {x for x in value.args[:2] if self._matrix_of(x, needed) is None}
                b = value.args[1]  # many rows are worth a copy: products with a transposed matrix are slower
                needed |= {b} if value.shape[-2] >= MANY * b.shape[-2] and self.matrix(b, needed)[3] != 1 else set()
        return needed

    def _matrix_of(self, x: Value, stored: Set[Value]) -> tuple[Value, Affine, int, int] | None:
        rows, columns = x.shape[-2:]
        access = Access(stored, {"row": rows, "column": columns})
        outer = [Affine.of(f"b{n}") for n in range(len(x.shape) - 2)]
        access.bounds.update({f"b{n}": size for n, size in enumerate(x.shape[:-2])})
        base, index = access.resolve(x, (*outer, Affine.of("row"), Affine.of("column")))
        if base.kind not in MEMORY and base not in stored:
            return None
        position = access.position(base, index)
        if access.divides:
            return None
        factors = dict(position.terms)
        down, along = factors.get("row", 0), factors.get("column", 0)
        first = Affine(tuple((v, f) for v, f in position.terms if v not in ("row", "column")), position.constant)
        if (along == 1 or columns == 1) and (rows == 1 or down >= columns):
            return base, first, max(down, columns), 1
        if (down == 1 or rows == 1) and (columns == 1 or along >= rows):
            return base, first, 1, max(along, rows)
        return None

    def matrix(self, x: Value, stored: Set[Value] | None = None) -> tuple[Value, Affine, int, int]:
        """Return the array of a matrix, its first entry, and the steps between rows and between columns."""
        matrix = self._matrix_of(x, self.stored if stored is None else stored)
        assert matrix is not None
        return matrix

    def entries(self, value: Value) -> list[tuple[Value, Affine]]:
        """Return the entries in memory that a value in memory reads at its own index."""
        return self._dry(value).reads

    def _dry(self, value: Value) -> Access:
        """Return the access that computes a value in memory."""
        if value not in self._accesses:
            self._accesses[value] = self._accessed(value)
        return self._accesses[value]

    def _accessed(self, value: Value) -> Access:
        shape = value.args[0].shape if value.kind == "reduce" else value.shape
        wide = [n for n in shape if n != 1]
        variables = loop_names(len(wide))
        access = Access(self.stored, {str(v): n for v, n in zip(variables, wide, strict=True)})
        index = domain_index(shape, variables)
        if value.kind == "reduce":
            access.at(value.args[0], index)
        elif value.kind in ("product", "join", "scatter"):
            for x in value.args:
                names = [Affine.of(f"d{n}") for n in range(len(x.shape))]
                access.bounds.update({f"d{n}": size for n, size in enumerate(x.shape)})
                access.at(x, tuple(names))
        elif value.kind == "scan":
            for x in value.args:
                access.at(x, domain_index(x.shape, loop_names(sum(n != 1 for n in x.shape))))
            level = value.info
            access.reads += [
                (x, at)
                for kernel in self._kernels(level)
                for inner in kernel.values
                for x, at in self.entries(inner)
                if x.level is not level
            ]
        elif value.kind != "result":
            access.define(value, index, named=False)
        return access

    # loops

    def _kernels(self, level: Level) -> list[Kernel]:
        """Return the kernels of a level in order; a value joins the loops of its arguments if it can."""
        kernels, places = list[Kernel](), dict[Value, int]()
        scans = [value for value in self._all if value.kind == "scan" and value.level is level]
        others = [v for v in self._all if v in self.stored and v.level is level and v.kind != "result"]
        for value in sorted([*others, *scans], key=lambda value: value.number):
            place = self._joined(value, kernels, places)
            if place is None:
                loops = value.kind not in ("product", "join", "scatter", "scan", "reduce") or accumulates(value)
                kernels.append(Kernel("loops" if loops else value.kind, _domain(value)))
                place = len(kernels) - 1
            kernels[place].values.append(value)
            places[value] = place
            if value.kind == "scan":
                places.update(dict.fromkeys(self._uses[value], place))
        return kernels

    def _joined(self, value: Value, kernels: Sequence[Kernel], places: dict[Value, int]) -> int | None:
        """Return the kernel that can also compute a value."""
        alone = value.kind in ("product", "join", "scatter", "scan") or in_one_loop(value)
        if alone or (value.kind == "reduce" and not accumulates(value)):
            return None
        domain, reads = _domain(value), self.entries(value)
        first = max((places[x] for x, _ in reads if x in places), default=-1)
        variables = loop_names(len(domain))
        for place in range(len(kernels) - 1, max(first, 0) - 1, -1):
            kernel = kernels[place]
            if kernel.kind != "loops" or kernel.domain != domain or not domain:
                continue
            inside = [(x, at) for x, at in reads if places.get(x) == place]
            related = {x for x, _ in reads} & {x for other in kernel.values for x, _ in self.entries(other)}
            same = all(
                x.kind != "reduce" and at == address(x.shape, domain_index(x.shape, variables)) for x, at in inside
            )
            if same and (inside or related):
                return place
        return None

    def _shared(self) -> set[Value]:
        """Return costly values that the loops of several kernels compute."""
        computed = defaultdict[Value, set[int]](set)
        for level in self.levels:
            for kernel in self.kernels[level]:
                for value in kernel.values if kernel.kind != "scan" else ():
                    for key in self._dry(value).computed:
                        if isinstance(key[0], Value) and key[0] not in self.stored:
                            computed[key[0]].add(id(kernel))
        return {
            value
            for value, kernels in computed.items()
            if len(kernels) > 1 and len(self._uses[value]) > 1 and self._cost(value) > CHEAP
        }

    def _cost(self, value: Value) -> int:
        """Return the operations of an entry, roughly; a function is ten."""
        if value in self.stored or value.kind in MEMORY:
            return 0
        if value not in self._costs:
            alone = {"map": 1 + 10 * len(CALLS.findall(str(value.info))), "draw": 30}.get(value.kind, 0)
            self._costs[value] = alone + sum(map(self._cost, value.args))
        return self._costs[value]

    # memory

    def _homes(self) -> tuple[dict[Value, Value], list[tuple[Level, int]]]:
        """Return the next values that overwrite their states, and the states whose next values are copied."""
        homes, copied = dict[Value, Value](), list[tuple[Level, int]]()
        for level in self.levels:
            places = {value: n for n, kernel in enumerate(self.kernels[level]) for value in kernel.values}
            for number, (state, following) in enumerate(zip(level.states, level.following, strict=True)):
                base = unshaped(following)
                if base in places and self._overwrites(level, places[base], base, state):
                    homes[base] = state
                elif base is not state:
                    copied.append((level, number))
        return homes, copied

    def _overwrites(self, level: Level, place: int, value: Value, state: Value) -> bool:
        """Return whether a value may be written over a state: nothing reads the state afterwards."""
        kernels = self.kernels[level]
        if any(state in self._read(value) for kernel in kernels[place + 1 :] for value in kernel.values):
            return False
        kernel = kernels[place]
        if kernel.kind == "product":
            a, b, *c = value.args
            return state not in {self.matrix(a)[0], self.matrix(b)[0]} and all(
                unshaped(x) is state or state not in self._read_of(x) for x in c
            )
        if kernel.kind != "loops":
            return state not in self._read(value)
        if value.kind == "reduce":
            return all(state not in self._read(other) for other in kernel.values)
        variables = loop_names(len(kernel.domain))
        here = address(value.shape, domain_index(value.shape, variables))
        return all(at == here for other in kernel.values for x, at in self.entries(other) if x is state)

    def _read(self, value: Value) -> set[Value]:
        return {x for x, _ in self.entries(value)}

    def _read_of(self, x: Value) -> set[Value]:
        access = Access(self.stored, {f"d{n}": size for n, size in enumerate(x.shape)})
        access.at(x, tuple(Affine.of(f"d{n}") for n in range(len(x.shape))))
        return {value for value, _ in access.reads}

    def arrays(self, level: Level) -> Iterator[tuple[Value, int, int]]:
        """Yield the values of a level in the workspace, with their first and last kernel."""
        spans = dict[Value, list[int]]()
        for place, kernel in enumerate(self.kernels[level]):
            for value in kernel.values:
                results = self._uses[value] if value.kind == "scan" else [value]
                for x in [*results, *self._read(value)]:
                    if x.level is level and (x in self.stored or x.kind == "result"):
                        spans.setdefault(x, []).append(place)
        last = len(self.kernels[level])
        for copied, number in self.copied:
            if copied is level:
                spans.setdefault(unshaped(level.following[number]), []).append(last)
        for value, places in spans.items():
            yield value, min(places), max(places) if level is not self.top else last


def unshaped(value: Value) -> Value:
    """Return a value without the reshapes around it."""
    while value.kind == "view" and value.info == ("reshape",):
        value = value.args[0]
    return value


def behind(value: Value) -> Value:
    """Return the value behind all views."""
    while value.kind == "view":
        value = value.args[0]
    return value


def _domain(value: Value) -> tuple[int, ...]:
    shape = value.args[0].shape if value.kind == "reduce" else value.shape
    return tuple(n for n in shape if n != 1)


def packed(spans: Sequence[tuple[int, int, int]], first: int) -> tuple[list[int], int]:
    """Return a place for each array, given as (bytes, first use, last use), and the end of all of them."""
    taken, places = list[tuple[int, int, int, int]](), list[int]()
    end = first
    for size, begin, last in spans:
        size = -(-size // ALIGNED) * ALIGNED
        place = first
        for low, high, other_begin, other_last in sorted(taken):
            if other_begin <= last and begin <= other_last and low < place + size and place < high:
                place = high
        taken.append((place, place + size, begin, last))
        places.append(place)
        end = max(end, place + size)
    return places, end
