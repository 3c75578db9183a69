"""Where values are in C: arguments, constants in the text, the workspace, and variables."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ortpipe.runtime.c.body import Location
from ortpipe.runtime.c.elementwise import number
from ortpipe.runtime.c.plan import ALONE, Plan, packed
from ortpipe.runtime.c.values import SMALL, Value, walk

PREFIXES = {"state": "s", "row": "in", "constant": "k", "output": "out"}  # no name of C or of its headers has one


@dataclass(frozen=True)
class Argument:
    """An argument of the function, an array in C order.

    Roles: `state` is read and replaced, `row` is read [steps, …], `constant` is read, `output` is written [steps].
    """

    name: str  # of the value in the graph
    c_name: str
    dtype: np.dtype
    shape: tuple[int, ...]  # in one step
    role: str


class MemoryPlan:
    """The place of every value in memory, and the names of C.

    `arguments` are those of the function, `constants` the values of some, `tables` and `arrays` lines that declare
    the others, `workspace` the bytes of all arrays, `seeded` whether values are drawn at random.
    """

    def __init__(self, plan: Plan, names: Sequence[str]) -> None:
        self._plan, self._taken, self._places = plan, set[str](), dict[Value, Location]()
        self.constants, self.arguments = dict[str, np.ndarray](), list[Argument]()
        self.tables, self.arrays, self.workspace = list[str](), list[str](), 0
        self.values = [*walk([x for level in plan.levels for x in (*level.following, *level.outputs)])]
        self.seeded = any(value.kind == "draw" for value in self.values)
        self._name_arguments(names)
        self._locate()

    def fresh(self, name: str, prefix: str = "v") -> str:
        """Return a name that is not taken."""
        stem = f"{prefix}_{re.sub(r'[^A-Za-z0-9]+', '_', name.removesuffix('/of_step')).strip('_')}".rstrip("_")
        tails = itertools.chain([""], (f"_{n}" for n in itertools.count(2)))
        free = next(stem + tail for tail in tails if stem + tail not in self._taken)
        self._taken.add(free)
        return free

    def _name_arguments(self, names: Sequence[str]) -> None:
        step = self._plan.step
        rows = [value for value in self.values if value.kind == "row" and value.level is step]
        for role, values in (("state", step.states), ("row", sorted(rows, key=lambda value: value.info))):
            for value in values:
                self._argument(value, value.name, role)
        for value in self.values:
            if value.kind == "constant" and value.size > SMALL and not value.uniform:
                self._argument(value, value.name, "constant")
                self.constants[self.arguments[-1].c_name] = value.info
        for value, name in zip(step.outputs, names, strict=True):
            self._argument(value, name, "output")

    def _argument(self, value: Value, name: str, role: str) -> None:
        c_name = self.fresh(name, PREFIXES[role])
        self.arguments.append(Argument(name, c_name, value.dtype, value.shape, role))
        self._places[value.plain] = Location(c_name, _offset("step", value) if role in ("row", "output") else "")

    def _locate(self) -> None:
        """Decide where the values in memory are."""
        plan, end = self._plan, 0
        for level in plan.levels:
            arrays = list[tuple[Value, int, int]]()
            for value, begin, last in plan.spans(level):
                if value in plan.homes or value in self._places:
                    continue
                if value.size == 1 and value.kind not in (*ALONE, "result"):
                    self._places[value] = Location(self.fresh(value.name or "number"), variable=True)
                else:
                    arrays.append((value, begin, last))
            places, end = packed([(v.size * v.dtype.itemsize, a, b) for v, a, b in arrays], end)
            for (value, _, _), place in zip(arrays, places, strict=True):
                name = self.fresh(value.name or value.kind)
                self._places[value] = Location(name)
                self.arrays.append(f"{value.c_type} *const {name} = ({value.c_type} *) (work + {place});")
        self.workspace = end
        for level in plan.levels[1:]:
            results = {result.info: result for result in level.results}
            for place, state in enumerate(level.states):
                self._places[state] = self._places[results[place]]
            for place, value in enumerate(level.outputs):
                home = self._places[results[len(level.states) + place]]
                self._places[value.plain] = Location(home.array, _offset(level.variable, value))
        for value, state in plan.homes.items():
            self._places[value] = self._places[state]

    def place(self, value: Value) -> Location:
        """Return where a value is; a constant is written into the text on its first use."""
        if value.kind == "row" and value.args and value not in self._places:
            all_steps = self.place(value.args[0].plain)
            offsets = [text for text in (all_steps.offset, _offset(value.level.variable, value)) if text]
            self._places[value] = Location(all_steps.array, " + ".join(offsets))
        if value not in self._places:
            assert value.kind == "constant"
            name = self.fresh(value.name or "numbers")
            entries = ", ".join(number(x, value.dtype) for x in value.info.flat)
            self.tables.append(f"  static const {value.c_type} {name}[{value.size}] = {{{entries}}};")
            self._places[value] = Location(name)
        return self._places[value]


def _offset(variable: str, value: Value) -> str:
    """Return where a step's entries begin."""
    return variable if value.size == 1 else f"{variable} * {value.size}"
