"""Write a plan as a function in C."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortpipe.runtime.c import text
from ortpipe.runtime.c.access import INDEXED, OUTSIDE
from ortpipe.runtime.c.kernels import KernelWriter
from ortpipe.runtime.c.lines import CodeLines
from ortpipe.runtime.c.memory import MemoryPlan
from ortpipe.runtime.c.plan import Plan, unshaped
from ortpipe.runtime.c.values import C_TYPES, Level, Value

LETTERS = {"float32": ("s", "float"), "float64": ("d", "double")}  # of BLAS functions


class FunctionWriter:
    """Writes the function of an epoch; `seeded` is whether it draws at random."""

    def __init__(self, plan: Plan, names: Sequence[str], function: str, *, blas: bool) -> None:
        self._plan, self._blas, self._function, self._out = plan, blas, function, CodeLines()
        self.memory = MemoryPlan(plan, names)
        self._kernels = KernelWriter(plan, self.memory, self._out, self._level, blas=blas)
        self._indexed = any(value.kind in INDEXED for value in self.memory.values)
        self.seeded = any(value.kind == "draw" for value in self.memory.values)

    def text(self) -> str:
        """Return the source."""
        self._out.add("const uint64_t mode = flush_subnormals();")
        self._out.add(*(self.memory.arrays or ["(void) work;"]))
        self._out.add(*([f"bool {OUTSIDE} = false;"] if self._indexed else []))
        self._level(self._plan.top)
        with self._out.block("for (int64_t step = 0; step < steps; step++)"):
            self._level(self._plan.step)
            if self._indexed:
                with self._out.block(f"if ({OUTSIDE})"):
                    self._lose(self._plan.step.outputs)
        self._out.add("restore_subnormals(mode);")
        parts = [text.HEAD, text.FLUSHED, *self._products(), *([text.RANDOM] if self.seeded else [])]
        return "".join(
            [*parts, "\n" + "\n".join([f"{self._head()} {{", *self.memory.tables, *self._out.lines, "}"]) + "\n"]
        )

    def _lose(self, outputs: Sequence[Value]) -> None:
        """Write nan into the outputs of a step."""
        for value in outputs:
            if value.dtype.kind == "f":
                self._kernels.store(unshaped(value), self._plan.values.constant(np.nan, value.dtype))

    def _products(self) -> list[str]:
        kinds = sorted({value.dtype.name for value in self.memory.values if value.kind == "product"})
        template = text.BLAS if self._blas else text.PRODUCT
        return [template.replace("LETTER", LETTERS[kind][0]).replace("TYPE", LETTERS[kind][1]) for kind in kinds]

    def _head(self) -> str:
        arrays = [
            f"{'const ' if x.role in ('row', 'constant') else ''}{C_TYPES[x.dtype.name]} *{x.c_name}"
            for x in self.memory.arguments
        ]
        numbers = ["int64_t steps", *(["uint64_t seed", "int64_t first"] if self.seeded else [])]
        lines = ",\n    ".join([", ".join(numbers), *arrays, "unsigned char *work"])
        return f"void {self._function}(\n    {lines})"

    def _level(self, level: Level) -> None:
        """Write the kernels of a level, and copy the next states that could not be written in place."""
        if self.seeded and level.parent is not None:
            outer, v = f"key_of_{level.parent.variable}" if level.depth > 1 else "seed", level.variable
            number = v if level.depth > 1 else "(first + step)"
            self._out.add(f"const uint64_t key_of_{v} = folded({outer}, (uint32_t) {number});")
            draws = {value.info for value in self.memory.values if value.kind == "draw" and value.level is level}
            self._out.add(*(f"const uint64_t key{n} = folded(key_of_{v}, {n});" for n in sorted(draws)))
        for kernel in self._plan.kernels[level]:
            self._kernels.write(kernel)
        for copied, place in self._plan.copied:
            if copied is level:
                value = unshaped(level.following[place])
                self._kernels.store(level.states[place], value)
