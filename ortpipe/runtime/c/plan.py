"""Decide which values are in memory, which loops compute them, and where each of them is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ortpipe.runtime.c.body import ANYWHERE, LoopBody, NotStrided
from ortpipe.runtime.c.strides import Strides, contiguous
from ortpipe.runtime.c.values import MEMORY, Level, Value, ValueTable, behind_views, walk

ALONE = ("product", "join", "scatter", "scan")  # kinds that are computed by loops of their own
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


def domain_of(value: Value) -> tuple[int, ...]:
    """Return the numbers of iterations of the loops that compute a value."""
    shape = value.args[0].shape if value.kind == "reduce" else value.shape
    return tuple(n for n in shape if n != 1)


def matrix_of(x: Value, stored: Collection[Value]) -> tuple[Value, Strides, int, int] | None:
    """Return the array of a matrix, its positions, and the steps between rows and between columns."""
    body = LoopBody(x.shape, stored)
    try:
        base, at = body.resolve(x, contiguous(x.shape))
    except NotStrided:
        return None
    (rows, columns), (down, along) = x.shape[-2:], at.steps[-2:]
    if not body.in_memory(base):
        return None
    if (along == 1 or columns == 1) and (rows == 1 or down >= columns):
        return base, at, max(down, columns), 1
    if (down == 1 or rows == 1) and (columns == 1 or along >= rows):
        return base, at, 1, max(along, rows)
    return None


class Plan:
    """The plan of a program.

    `kernels` are those of each level, in order, `homes` the next values that overwrite their states, `copied` the
    states whose next value is copied at the end of a step.
    """

    def __init__(self, values: ValueTable) -> None:
        self.values, self.step = values, (step := values.step)
        self.levels = [step, *(v.info for v in walk([*step.following, *step.outputs]) if v.kind == "scan")]
        for level in self.levels:
            self._fresh_ends(level)
        ends = [x for level in self.levels for x in (*level.following, *level.outputs, *level.results)]
        self._all = sorted(walk(ends), key=lambda value: value.number)
        self._uses = defaultdict[Value, list[Value]](list)
        for value in self._all:
            for x in value.args:
                self._uses[x].append(value)
        self.stored = self._needed()
        while more := self._planned():
            self.stored |= more
        self.homes, self.copied = self._homes()

    def _planned(self) -> set[Value]:
        """Plan the loops, and return values that should be in memory, too."""
        self._costs, self._bodies = dict[Value, int](), dict[Value, LoopBody]()
        try:
            self.kernels = {level: self._kernels(level) for level in self.levels}
            return self._shared()
        except NotStrided as view:
            return {view.value}

    def _fresh_ends(self, level: Level) -> None:
        """Give each next state that differs from its state, and each output, a value of its own in memory."""
        taken = set[Value]()
        for place, value in enumerate(level.following):
            if value.plain is not level.states[place]:
                level.following[place] = self._fresh(value, level, taken)
        level.outputs = [self._fresh(value, level, taken) for value in level.outputs]

    def _fresh(self, value: Value, level: Level, taken: set[Value]) -> Value:
        base = value.plain
        if base.kind in (*MEMORY, "view") or base.level is not level or base in taken:
            value = base = self.values.copy(value, level)
        taken.add(base)
        return value

    def _needed(self) -> set[Value]:
        """Return the values that must be in memory."""
        needed = {value for value in self._all if value.kind in (*ALONE, "reduce")}
        for level in self.levels:
            needed |= {value.plain for value in (*level.following, *level.outputs)}
        for value in self._all:
            for place, x in enumerate(value.args):
                inner, wider = value.level is not x.level, value.size > x.size or value.kind in ("product", "scatter")
                whole = in_one_loop(value) or (value.kind == "gather" and place == 0)
                if value.kind != "scan" and (inner or wider or whole):
                    needed.add(behind_views(x) if value.kind == "product" and place < 2 else x.plain)
        needed = {value for value in needed if value.kind not in (*MEMORY, "scan")}
        for value in self._all:
            if value.kind == "product":
                b = value.args[1]  # many rows are worth a copy: products with a transposed matrix are slower
                matrix = matrix_of(b, needed)
                needed |= {b} if matrix and value.shape[-2] >= MANY * b.shape[-2] and matrix[3] != 1 else set()
        return needed

    def reads(self, value: Value) -> list[tuple[Value, Strides]]:
        """Return the entries in memory that a value reads."""
        return self._dry(value).reads

    def _dry(self, value: Value) -> LoopBody:
        """Return the loops that compute a value."""
        if value not in self._bodies:
            self._bodies[value] = body = LoopBody(domain_of(value), self.stored)
            if value.kind == "reduce":
                body.entry(value.args[0], body.here)
            elif value.kind in ALONE:
                self._read_alone(value, body)
            else:
                body.compute(value, body.here)
        return self._bodies[value]

    def _read_alone(self, value: Value, body: LoopBody) -> None:
        """Note what a kernel of other loops than those over its value reads."""
        for place, x in enumerate(value.args):
            if value.kind == "product" and place < 2 and matrix_of(x, self.stored) is None:
                raise NotStrided(x)
            part = LoopBody(tuple(n for n in x.shape if n != 1), self.stored)
            part.entry(x, part.here)
            body.reads += (
                part.reads if value.kind == "product" and place == 2 else [(y, ANYWHERE) for y, _ in part.reads]
            )
        if value.kind == "scan":
            inner = [x for kernel in self._kernels(value.info) for x in kernel.values]
            body.reads += [(x, at) for one in inner for x, at in self.reads(one) if x.level is not value.info]

    # loops

    def _kernels(self, level: Level) -> list[Kernel]:
        """Return the kernels of a level in order; a value joins the loops of its arguments if it can."""
        kernels, places = list[Kernel](), dict[Value, int]()
        for value in self._all:
            if value.level is not level or (value not in self.stored and value.kind != "scan"):
                continue
            alone = value.kind in ALONE or (value.kind == "reduce" and not accumulates(value))
            place = None if alone or in_one_loop(value) else self._joined(value, kernels, places)
            if place is None:
                kernels.append(Kernel(value.kind if alone else "loops", domain_of(value)))
                place = len(kernels) - 1
            kernels[place].values.append(value)
            places.update(dict.fromkeys([value, *(self._uses[value] if value.kind == "scan" else [])], place))
        return kernels

    def _joined(self, value: Value, kernels: Sequence[Kernel], places: dict[Value, int]) -> int | None:
        """Return the kernel that can also compute a value."""
        domain, reads = domain_of(value), self.reads(value)
        first = max((places[x] for x, _ in reads if x in places), default=0)
        for place in range(len(kernels) - 1, first - 1, -1):
            kernel = kernels[place]
            if kernel.kind != "loops" or kernel.domain != domain or not domain:
                continue
            inside = [(x, at) for x, at in reads if places.get(x) == place]
            related = {x for x, _ in reads} & {x for other in kernel.values for x, _ in self.reads(other)}
            same = all(x.kind != "reduce" and at == contiguous(domain) for x, at in inside)
            if same and (inside or related):
                return place
        return None

    def _shared(self) -> set[Value]:
        """Return costly values that the loops of several kernels compute."""
        computed = defaultdict[Value, set[Kernel]](set)
        for kernel in (kernel for level in self.levels for kernel in self.kernels[level]):
            for name in (name for value in kernel.values for name in self._dry(value).names):
                if isinstance(name, tuple) and isinstance(name[0], Value):
                    computed[name[0]].add(kernel)
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
                base = following.plain
                if base in places and self._overwrites(level, places[base], base, state):
                    homes[base] = state
                elif base is not state:
                    copied.append((level, number))
        return homes, copied

    def _overwrites(self, level: Level, place: int, value: Value, state: Value) -> bool:
        """Return whether a value may be written over a state: nothing reads the state afterwards."""
        kernel, later = self.kernels[level][place], self.kernels[level][place + 1 :]
        if any(state is x for other in later for one in other.values for x, _ in self.reads(one)):
            return False
        by_entry = kernel.kind == "product" or (kernel.kind == "loops" and value.kind != "reduce")
        here = contiguous(kernel.domain) if by_entry else None
        return all(at == here for other in kernel.values for x, at in self.reads(other) if x is state)

    def spans(self, level: Level) -> Iterator[tuple[Value, int, int]]:
        """Yield the values of a level in the workspace, with their first and last kernel."""
        used = defaultdict[Value, list[int]](list)
        for place, kernel in enumerate(self.kernels[level]):
            for value in kernel.values:
                results = self._uses[value] if value.kind == "scan" else [value]
                for x in [*results, *(x for x, _ in self.reads(value))]:
                    if x.level is level and (x in self.stored or x.kind == "result"):
                        used[x].append(place)
        last = len(self.kernels[level])
        for copied, number in self.copied:
            if copied is level:
                used[level.following[number].plain].append(last)
        for value, places in used.items():
            yield value, min(places), max(places)


def packed(spans: Sequence[tuple[int, int, int]], first: int) -> tuple[list[int], int]:
    """Return a place for each array, given as (bytes, first use, last use), and the end of all of them.

    The largest come first, and each takes the lowest place that is free while it is used.
    """
    taken, places = list[tuple[int, int, int, int]](), [first] * len(spans)
    for number in sorted(range(len(spans)), key=lambda n: -spans[n][0]):
        size, begin, last = spans[number]
        size = -(-size // ALIGNED) * ALIGNED
        for low, high, other_begin, other_last in sorted(taken):
            if other_begin <= last and begin <= other_last and low < places[number] + size and places[number] < high:
                places[number] = high
        taken.append((places[number], places[number] + size, begin, last))
    return places, max([first, *(high for _, high, _, _ in taken)])
