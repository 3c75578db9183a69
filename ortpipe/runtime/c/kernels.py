"""Write the loops of a kernel as C."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ortpipe.runtime.c.access import Access, CLocation, bare
from ortpipe.runtime.c.affine import ZERO, Affine, Index, address
from ortpipe.runtime.c.elementwise import number
from ortpipe.runtime.c.memory import MemoryPlan
from ortpipe.runtime.c.plan import Kernel, Plan, domain_index, loop_names, unshaped
from ortpipe.runtime.c.text import CodeLines
from ortpipe.runtime.c.values import Level, Value

LANES = {4: 32, 8: 16}  # of a sum along the last axis, by the bytes of a number
START = {"+": 0, "*": 1, "max": -np.inf, "min": np.inf}


class KernelWriter:
    """Writes kernels; `write_level` writes those of a level inside another one."""

    def __init__(self, plan: Plan, memory: MemoryPlan, out: CodeLines, write_level: Callable[[Level], None]) -> None:
        self._plan, self._memory, self._out, self._write_level = plan, memory, out, write_level

    def write(self, kernel: Kernel) -> None:
        """Write a kernel."""
        getattr(self, f"_write_{kernel.kind}")(kernel)

    def _access(self, bounds: Mapping[str, int], counts: Mapping[object, int] | None = None) -> Access:
        return Access(self._plan.stored, bounds, self._memory.place, self._memory.fresh, counts)

    def _twice(self, bounds: Mapping[str, int], write: Callable[[Access], list[str]]) -> tuple[list[str], Access]:
        """Return the lines of a loop's body: entries are counted first, so that those used twice become variables."""
        first = Access(self._plan.stored, bounds)
        write(first)
        second = self._access(bounds, first.counts)
        lines = write(second)
        return [*second.lines, *lines], second

    def _collapsed(
        self, bounds: dict[str, int], write: Callable[[Access, Mapping[str, Affine]], list[str]], among: Sequence[str]
    ) -> tuple[dict[str, int], dict[str, Affine]]:
        """Return the loops with neighbours joined where all entries follow each other in memory."""
        variables, bounds, among = {v: Affine.of(v) for v in bounds}, dict(bounds), list(among)
        dry = Access(self._plan.stored, bounds)
        write(dry, variables)
        used = [dict(position.terms) for position in dry.used]

        def follows(pair: tuple[str, str]) -> bool:
            outer, inner = pair
            return all(factors.get(outer, 0) == factors.get(inner, 0) * bounds[inner] for factors in used)

        while not dry.divides and (pair := next(filter(follows, itertools.pairwise(among)), None)):
            outer, inner = pair
            bounds[inner] *= bounds.pop(outer)
            variables[outer] = ZERO
            among.remove(outer)
        return bounds, variables

    def _write_loops(self, kernel: Kernel) -> None:
        names = [str(v) for v in loop_names(len(kernel.domain))]
        bounds = dict(zip(names, kernel.domain, strict=True))
        several = len(kernel.values) > 1

        def write(access: Access, variables: Mapping[str, Affine]) -> list[str]:
            lines, at = list[str](), [variables[v] for v in names]
            for value in kernel.values:
                if value.kind == "reduce":
                    index = domain_index(value.args[0].shape, at)
                    entry = self._named(access, value, access.at(value.args[0], index), needed=several)
                    index = tuple(ZERO if axis in value.info[1] else part for axis, part in enumerate(index))
                else:
                    index = domain_index(value.shape, at)
                    entry = access.define(value, index, named=several)
                position, place = address(value.shape, index), self._memory.place(value)
                access.used.append(position)
                lines.append(_into(place.at(position), entry, value, place))
            return lines

        for value in kernel.values:
            if value.kind == "reduce":
                self.store(value, self._plan.values.constant(_start(value)))
        bounds, variables = self._collapsed(bounds, write, names)
        lines, _ = self._twice(bounds, lambda access: write(access, variables))
        with self._out.loops(bounds):
            self._out.add(*lines)

    def _named(self, access: Access, value: Value, entry: str, *, needed: bool) -> str:
        """Return an entry, as a variable if a macro repeats it or it must be read before something is written."""
        needed = needed or value.info[0] in ("max", "min")
        return access.declare(value.args[0], entry) if needed and access.final else entry

    def store(
        self,
        value: Value,
        source: Value,
        place: CLocation | None = None,
        into: Callable[[Index], Affine] | None = None,
    ) -> None:
        """Write every entry of a value: those of another value, which is broadcast, or of a part of it."""
        place = place or self._memory.place(value)
        shape = source.shape if into is not None else value.shape
        wide = [n for n in shape if n != 1]
        names = [str(v) for v in loop_names(len(wide))]
        bounds = dict(zip(names, wide, strict=True))

        def write(access: Access, variables: Mapping[str, Affine]) -> list[str]:
            index = domain_index(shape, [variables[v] for v in names])
            entry = access.broadcast(source, index)
            position = into(index) if into is not None else address(shape, index)
            access.used.append(position)
            return [f"{place.at(position)} = {bare(entry)};"]

        bounds, variables = self._collapsed(bounds, write, names)
        lines, _ = self._twice(bounds, lambda access: write(access, variables))
        with self._out.loops(bounds):
            self._out.add(*lines)

    def _write_reduce(self, kernel: Kernel) -> None:
        """Write a sum along the last axis and perhaps others; long ones are added in lanes, in a fixed order."""
        [value] = kernel.values
        x, (operator, axes) = value.args[0], value.info
        wide = [axis for axis, n in enumerate(x.shape) if n != 1]
        names = {axis: str(v) for axis, v in zip(wide, loop_names(len(wide)), strict=True)}
        outside, summed = [names[a] for a in wide if a not in axes], [names[a] for a in wide if a in axes]
        bounds = {names[axis]: x.shape[axis] for axis in wide}

        def write(access: Access, variables: Mapping[str, Affine], shift: Affine = ZERO) -> str:
            at = {**variables, summed[-1]: variables[summed[-1]] + shift}
            return access.at(x, domain_index(x.shape, [at[names[axis]] for axis in wide]))

        bounds, variables = self._collapsed(bounds, lambda access, v: [write(access, v)], summed)
        summed = [v for v in summed if v in bounds]
        inner, place, lanes = summed[-1], self._memory.place(value), LANES.get(value.dtype.itemsize, 1)
        target, in_order = self._target(value, variables, names), bounds[inner] < 2 * lanes
        into = target if in_order and place.variable else self._memory.fresh("total")

        def body(limits: Mapping[str, int], entry: str, variables: Mapping[str, Affine], shift: Affine) -> list[str]:
            def lines(access: Access) -> list[str]:
                new = self._named(access, value, write(access, variables, shift), needed=False)
                return [_added(operator, entry, new)]

            return self._twice(limits, lines)[0]

        with self._out.loops({v: bounds[v] for v in outside if v in bounds}, independent=False):
            limits = {v: bounds[v] for v in summed}
            if in_order:
                start = number(_start(value), value.dtype)
                self._out.add(f"{value.c_type} {into} = {start};")
                rows = {v: limits[v] for v in summed[:-1]}
                part = self._memory.fresh("part") if rows else into  # sums of rows need not wait for each other
                with self._out.loops(rows, independent=False):
                    self._out.add(*([f"{value.c_type} {part} = {start};"] if rows else []))
                    with self._out.loops({inner: limits[inner]}, independent=False):
                        self._out.add(*body(bounds, part, variables, ZERO))
                    self._out.add(*([_added(operator, into, part)] if rows else []))
            else:
                self._in_lanes(
                    value, into, lanes, limits, lambda more, *rest: body({**bounds, **more}, *rest), variables
                )
            if into != target:
                declared = f"const {value.c_type} " if place.variable else ""
                self._out.add(f"{declared}{target} = {into}{'' if in_order else '[0]'};")

    def _in_lanes(
        self,
        value: Value,
        into: str,
        lanes: int,
        limits: dict[str, int],
        body: Callable[..., list[str]],
        variables: Mapping[str, Affine],
    ) -> None:
        """Write a long sum: entry i goes to lane i modulo the number of lanes, and the lanes are added in pairs."""
        operator, inner = value.info[0], [*limits][-1]
        length, lane, entry = limits.pop(inner), Affine.of("lane"), f"{into}[lane]"
        rest = length % lanes
        self._out.add(f"{value.c_type} {into}[{lanes}];")
        self._out.loop(_lanes(lanes), [f"{entry} = {number(_start(value), value.dtype)};"])
        with self._out.loops(limits, independent=False):
            with self._out.block(f"for (int64_t {inner} = 0; {inner} < {length - rest}; {inner} += {lanes})"):
                lines = body({inner: length - lanes + 1, "lane": lanes}, entry, variables, lane)
                self._out.loop(_lanes(lanes), lines, independent=True)
            if rest:
                last, shift = {**variables, inner: ZERO}, lane + Affine((), length - rest)
                self._out.loop(_lanes(rest), body({inner: 1, "lane": rest}, entry, last, shift))
        with self._out.block(f"for (int half = {lanes // 2}; half > 0; half /= 2)"):
            self._out.loop(_lanes("half"), [_added(operator, entry, f"{into}[lane + half]")])

    def _target(self, value: Value, variables: Mapping[str, Affine], names: Mapping[int, str]) -> str:
        index = tuple(
            ZERO if axis in value.info[1] or axis not in names else variables[names[axis]]
            for axis in range(len(value.shape))
        )
        return self._memory.place(value).at(address(value.shape, index))

    def _write_product(self, kernel: Kernel) -> None:
        [value] = kernel.values
        a, b, *c = value.args
        (alpha, beta), place = value.info, self._memory.place(value)
        if c and not (self._plan.homes.get(value) is unshaped(c[0]) and c[0].size == value.size):
            self.store(value, c[0])
        batch = {f"b{n}": size for n, size in enumerate(value.shape[:-2])}
        (m, n), k = value.shape[-2:], a.shape[-1]
        operands = []
        for x in (a, b):
            base, first, down, along = self._plan.matrix(x)
            skipped = len(value.shape) - len(x.shape)
            by_name = {
                f"b{i}": ZERO if size == 1 else Affine.of(f"b{i + skipped}") for i, size in enumerate(x.shape[:-2])
            }
            for v, factor in first.terms:
                moved = by_name.get(v, Affine.of(v)) * factor
                first = first + Affine(((v, -factor),)) + moved
            operands.append(f"{_pointer(self._memory.place(base), first)}, {down}, {along}")
        left, right = operands
        row = Affine()
        for number_, size in enumerate(value.shape[:-2]):
            row = row * size + Affine.of(f"b{number_}")
        out = _pointer(place, row * (m * n))
        one, other = number(alpha, value.dtype), number(beta if c else 0, value.dtype)
        with self._out.loops(batch, independent=False):
            self._out.add(f"multiply_{value.c_type}({m}, {n}, {k}, {one}, {left}, {right}, {other}, {out});")

    def _write_join(self, kernel: Kernel) -> None:
        [value] = kernel.values
        place, axis, first = self._memory.place(value), value.info, 0
        for x in value.args:

            def into(index: Index, first: int = first) -> Affine:
                moved = [part + Affine((), first * (i == axis)) for i, part in enumerate(index)]
                return address(value.shape, tuple(moved))

            self.store(value, x, place, into)
            first += x.shape[axis]

    def _write_scatter(self, kernel: Kernel) -> None:
        [value] = kernel.values
        x, places, updates = value.args
        sign, axis = value.info
        self.store(value, x)
        wide = [n for n in updates.shape if n != 1]
        names = loop_names(len(wide))
        bounds = {str(v): n for v, n in zip(names, wide, strict=True)}

        def write(access: Access) -> list[str]:
            index = domain_index(updates.shape, names)
            if axis is None:
                rank, depth = len(places.shape) - 1, places.shape[-1]
                there = [access.chosen(places, (*index[:rank], Affine((), d)), value.shape[d]) for d in range(depth)]
                target, checked = (*there, *index[rank:]), list(zip(there, value.shape, strict=False))
            else:
                row = access.chosen(places, index, value.shape[axis])
                target, checked = (*index[:axis], row, *index[axis + 1 :]), [(row, value.shape[axis])]
            tests = " && ".join(f"{row} >= 0 && {row} < {n}" for row, n in checked)
            entry = access.at(updates, index)
            return [f"if ({tests}) {self._memory.place(value).at(address(value.shape, target))} {sign} {bare(entry)};"]

        lines, _ = self._twice(bounds, write)
        with self._out.loops(bounds, independent=False):
            self._out.add(*lines)

    def _write_scan(self, kernel: Kernel) -> None:
        [value] = kernel.values
        level: Level = value.info
        for state, start in zip(level.states, value.args, strict=True):
            self.store(state, start)
        with self._out.block(
            f"for (int64_t {level.variable} = 0; {level.variable} < {level.count}; {level.variable}++)"
        ):
            self._write_level(level)


def _start(value: Value) -> np.ndarray:
    """Return the number from which a sum, product, maximum or minimum starts."""
    start, kind = START[value.info[0]], value.dtype
    if kind.kind != "f" and np.isinf(start):
        bounds = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
        start = bounds[int(start > 0)]
    return np.asarray(start, kind)


def _lanes(count: int | str) -> str:
    return f"for (int lane = 0; lane < {count}; lane++)"


def _pointer(place: CLocation, position: Affine) -> str:
    if place.variable:
        return f"&{place.array}"
    there = place.first + position
    return place.array if there == ZERO else f"{place.array} + {there}"


def _added(operator: str, total: str, entry: str) -> str:
    """Return the statement that adds an entry."""
    if operator in "+*":
        return f"{total} {operator}= {bare(entry)};"
    return f"{total} = {'LARGER' if operator == 'max' else 'SMALLER'}({entry}, {total});"


def _into(target: str, entry: str, value: Value, place: CLocation) -> str:
    """Return the statement that writes an entry of a value, or adds it."""
    if value.kind == "reduce":
        return _added(value.info[0], target, entry)
    declared = f"const {value.c_type} " if place.variable else ""
    return f"{declared}{target} = {bare(entry)};"
