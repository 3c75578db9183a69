"""Write the loops of a kernel as C."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ortpipe.runtime.c.body import LoopBody, loop_names, within
from ortpipe.runtime.c.elementwise import number
from ortpipe.runtime.c.memory import MemoryPlan
from ortpipe.runtime.c.plan import Kernel, Plan, matrix_of
from ortpipe.runtime.c.strides import Shape, Strides, broadcast, contiguous
from ortpipe.runtime.c.text import CodeLines
from ortpipe.runtime.c.values import Level, Value

LANES = {4: 32, 8: 16}  # of a sum along the last axis, by the bytes of a number
START = {"+": 0, "*": 1, "max": -np.inf, "min": np.inf}


class KernelWriter:
    """Writes the kernels of levels."""

    def __init__(self, plan: Plan, memory: MemoryPlan, out: CodeLines) -> None:
        self._plan, self._memory, self._out = plan, memory, out

    def write(self, level: Level) -> None:
        """Write the kernels of a level, and copy the next states that could not be written in place."""
        if self._memory.seeded:
            v, outer = ("(first + step)", "seed") if level.parent is None else (level.variable, level.parent.key)
            self._out.add(f"const uint64_t {level.key} = folded({outer}, (uint32_t) {v});")
            draws = {value.info for value in self._memory.values if value.kind == "draw" and value.level is level}
            self._out.add(*(f"const uint64_t key{n} = folded({level.key}, {n});" for n in sorted(draws)))
        for kernel in self._plan.kernels[level]:
            if kernel.kind == "loops":
                self._write_loops(kernel)
            else:
                getattr(self, f"_write_{kernel.kind}")(kernel.values[0])
        for copied, place in self._plan.copied:
            if copied is level:
                self.store(level.states[place], level.following[place])

    def _groups(self, domain: Shape, write: Callable[[LoopBody], None], apart: int = 0) -> list[list[int]]:
        """Return the loops that can be one, because all entries follow each other."""
        first = LoopBody(domain, self._plan.stored)
        write(first)
        return first.merged(apart)

    def _statements(
        self, domain: Shape, write: Callable[[LoopBody], None], groups: Sequence[Sequence[int]], *variables: str
    ) -> list[str]:
        body = LoopBody(domain, self._plan.stored, variables, self._memory.place, self._memory.fresh, groups)
        write(body)
        return [*body.lines, *body.stores]

    def _loops(self, domain: Shape, write: Callable[[LoopBody], None], *, independent: bool = True) -> None:
        groups = self._groups(domain, write)
        bounds = {
            v: math.prod(domain[i] for i in group) for v, group in zip(loop_names(len(groups)), groups, strict=True)
        }
        with self._out.loops(bounds, independent=independent):
            self._out.add(*self._statements(domain, write, groups))

    def _write_loops(self, kernel: Kernel) -> None:
        for value in kernel.values:
            if value.kind == "reduce":
                self.store(value, self._plan.values.constant(_start(value)))

        several = len(kernel.values) > 1

        def write(body: LoopBody) -> None:
            for value in kernel.values:
                place = body.place(value)
                if value.kind == "reduce":
                    entry = body.entry(value.args[0], body.here)
                    entry = body.declare(value.args[0], entry) if several and not entry.isidentifier() else entry
                    at = body.at(_by_axes(contiguous(value.shape), value.args[0].shape))
                    body.stores.append(_added(value.info[0], place.at(at.text(body.variables)), entry))
                elif place.variable:
                    body.declare(value, body.compute(value, body.here), place.array)
                else:
                    entry = body.compute(value, body.here)
                    entry = body.declare(value, entry) if several else entry
                    body.names[value, body.here] = entry
                    body.stores.append(f"{body.text(value, body.here)} = {entry};")

        self._loops(kernel.domain, write)

    def store(self, value: Value, source: Value, target: Strides | None = None) -> None:
        """Write the entries of a value, or those at some positions: those of another value, which is broadcast."""
        shape = value.shape if target is None else source.shape
        here, there = broadcast(source.shape, shape), target or contiguous(shape)

        def write(body: LoopBody) -> None:
            entry = body.entry(source, body.at(_by_axes(here, shape)))
            body.stores.append(f"{body.text(value, body.at(_by_axes(there, shape)))} = {entry};")

        self._loops(tuple(n for n in shape if n != 1), write)

    def _write_reduce(self, value: Value) -> None:
        """Write a sum along the last axis and perhaps others."""
        x, (operator, axes), place = value.args[0], value.info, self._memory.place(value)
        order = sorted((axis for axis, n in enumerate(x.shape) if n != 1), key=lambda axis: axis in axes)
        domain, outside = tuple(x.shape[axis] for axis in order), sum(axis not in axes for axis in order)
        source, target = (
            Strides(0, tuple(contiguous(shape).steps[axis] for axis in order)) for shape in (x.shape, value.shape)
        )

        def write(body: LoopBody, into: str = "") -> None:
            body.at(target)
            body.stores.append(_added(operator, into, body.entry(x, body.at(source))))

        groups = self._groups(domain, write, outside)
        sizes, names = [math.prod(domain[axis] for axis in group) for group in groups], loop_names(len(groups))
        entry = place.at(Strides(0, tuple(target.steps[group[-1]] for group in groups)).text(names))
        summed = dict(zip(names, sizes, strict=True))
        with self._out.loops(
            {v: summed.pop(v) for v, group in zip(names, groups, strict=True) if group[0] < outside}, independent=False
        ):

            def lines(into: str, last: str) -> list[str]:
                return self._statements(domain, lambda body: write(body, into), groups, *names[:-1], last)

            total = self._sum(value, summed, lines)
            if total != entry:
                self._out.add(f"{f'const {value.c_type} ' if place.variable else ''}{entry} = {total};")

    def _sum(self, value: Value, bounds: dict[str, int], lines: Callable[[str, str], list[str]]) -> str:
        """Write a sum over some loops, and return where it is; `lines` add an entry, by the last variable.

        The last loop of a long sum adds entry i to lane i modulo the number of lanes; the lanes are added in pairs.
        """
        place, lanes, start = self._memory.place(value), LANES.get(value.dtype.itemsize, 1), _start(value)
        *_, inner = bounds
        if bounds[inner] < 2 * lanes:
            rows = {v: n for v, n in bounds.items() if v != inner}
            total = place.array if place.variable else self._memory.fresh("total")
            part = self._memory.fresh("part") if rows else total  # sums of rows need not wait for each other
            first = number(start, value.dtype)
            self._out.add(f"{value.c_type} {total} = {first};")
            with self._out.loops(rows, independent=False):
                self._out.add(*([f"{value.c_type} {part} = {first};"] if rows else []))
                with self._out.loops({inner: bounds[inner]}, independent=False):
                    self._out.add(*lines(part, inner))
                self._out.add(*([_added(value.info[0], total, part)] if rows else []))
            return total
        total, length = self._memory.fresh("total"), bounds.pop(inner)
        entry, rest = f"{total}[lane]", length % lanes
        self._out.add(f"{value.c_type} {total}[{lanes}];")
        self._out.loop(_lanes(lanes), [f"{entry} = {number(start, value.dtype)};"])
        with self._out.loops(bounds, independent=False):
            with self._out.block(f"for (int64_t {inner} = 0; {inner} < {length - rest}; {inner} += {lanes})"):
                self._out.loop(_lanes(lanes), lines(entry, f"({inner} + lane)"), independent=True)
            if rest:
                self._out.loop(_lanes(rest), lines(entry, f"({length - rest} + lane)"))
        with self._out.block(f"for (int half = {lanes // 2}; half > 0; half /= 2)"):
            self._out.loop(_lanes("half"), [_added(value.info[0], entry, f"{total}[lane + half]")])
        return f"{total}[0]"

    def _write_product(self, value: Value) -> None:
        a, b, *c = value.args
        (alpha, beta), place = value.info, self._memory.place(value)
        if c and not (self._plan.homes.get(value) is c[0].plain and c[0].size == value.size):
            self.store(value, c[0])
        batch = {f"b{number}": size for number, size in enumerate(value.shape[:-2])}
        (m, n), k, variables = value.shape[-2:], a.shape[-1], [*batch]
        operands = list[str]()
        for x in (a, b):
            matrix = matrix_of(x, self._plan.stored)
            assert matrix is not None
            base, at, down, along = matrix
            first = Strides(at.first, at.steps[:-2]).text(variables[len(value.shape) - len(x.shape) :])
            operands.append(f"{self._memory.place(base).pointer(first)}, {down}, {along}")
        out = place.pointer(Strides(0, contiguous(value.shape).steps[:-2]).text(variables))
        numbers = number(alpha, value.dtype), *operands, number(beta if c else 0, value.dtype), out
        with self._out.loops(batch, independent=False):
            self._out.add(f"multiply_{value.c_type}({m}, {n}, {k}, {', '.join(numbers)});")

    def _write_join(self, value: Value) -> None:
        steps, axis, first = contiguous(value.shape).steps, value.info, 0
        for x in value.args:
            self.store(
                value, x, Strides(first, tuple(0 if n == 1 else step for n, step in zip(x.shape, steps, strict=True)))
            )
            first += x.shape[axis] * math.prod(value.shape[axis + 1 :])

    def _write_scatter(self, value: Value) -> None:
        x, updates, *places = value.args
        sign, first, sizes = value.info
        self.store(value, x)

        def write(body: LoopBody) -> None:
            here = body.here
            chosen = [body.chosen(p, here, size) for p, (_, size) in zip(places, sizes, strict=True)]
            terms = [f"{place} * {step}" for place, (step, _) in zip(chosen, sizes, strict=True)]
            position = " + ".join([*terms, body.at(_by_axes(first, updates.shape)).text(body.variables)])
            tests = " && ".join(within(place, size) for place, (_, size) in zip(chosen, sizes, strict=True))
            entry = body.entry(updates, here)
            body.stores.append(f"if ({tests}) {body.place(value).at(position)} {sign} {entry};")

        self._loops(tuple(n for n in updates.shape if n != 1), write, independent=False)

    def _write_scan(self, value: Value) -> None:
        level: Level = value.info
        for state, start in zip(level.states, value.args, strict=True):
            self.store(state, start)
        v = level.variable
        with self._out.block(f"for (int64_t {v} = 0; {v} < {level.count}; {v}++)"):
            self.write(level)


def _by_axes(strides: Strides, shape: Shape) -> Strides:
    """Return positions by the axes whose size is not 1, which are the loops over a shape."""
    return Strides(strides.first, tuple(step for step, n in zip(strides.steps, shape, strict=True) if n != 1))


def _start(value: Value) -> np.ndarray:
    """Return the number from which a sum, product, maximum or minimum starts."""
    start, kind = START[value.info[0]], value.dtype
    if kind.kind != "f" and np.isinf(start):
        bounds = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
        start = bounds[int(start > 0)]
    return np.asarray(start, kind)


def _lanes(count: int | str) -> str:
    return f"for (int lane = 0; lane < {count}; lane++)"


def _added(operator: str, total: str, entry: str) -> str:
    """Return the statement that adds an entry."""
    if operator in "+*":
        return f"{total} {operator}= {entry};"
    return f"{total} = {'LARGER' if operator == 'max' else 'SMALLER'}({entry}, {total});"
