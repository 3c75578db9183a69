"""Write an epoch as a function in C."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from ortpipe.runtime.c import text
from ortpipe.runtime.c.elementwise import WRONG
from ortpipe.runtime.c.kernels import KernelWriter
from ortpipe.runtime.c.memory import Argument, MemoryPlan
from ortpipe.runtime.c.plan import Plan
from ortpipe.runtime.c.reader import GraphReader, check_operators, states_of
from ortpipe.runtime.c.text import CodeLines
from ortpipe.runtime.c.values import C_TYPES, NotCompiled, Value, refused

LETTERS = {"float32": ("s", "float"), "float64": ("d", "double")}  # of BLAS functions


@dataclass(frozen=True)
class CSource:
    """A function in C: `void epoch(int64_t steps, …, unsigned char *work)`.

    Attributes:
        text: the source.
        arguments: the arrays between `steps` and `work`: states, rows, constants, outputs; see `Argument`.
        constants: the values of arguments with the role `constant`, by their name in C.
        workspace: the bytes of `work`, which must be a multiple of 64 bytes from 0.
        seeded: whether `uint64_t seed, int64_t first` follow `steps`: the random numbers' key, and the number of the
            first step.
        blas: whether products call `cblas_sgemm` and `cblas_dgemm`, which the library must bring.
    """

    text: str
    arguments: tuple[Argument, ...]
    constants: Mapping[str, np.ndarray]
    workspace: int
    seeded: bool
    blas: bool


def emit(
    model: onnx.ModelProto,
    weights: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    blas: bool = True,
    function: str = "epoch",
) -> CSource:
    """Return the source of an epoch graph, a Scan over steps.

    Args:
        model: the epoch graph.
        weights: the values of initializers that have none in `model`.
        shapes: the shapes of inputs, where the model leaves them open; of a Scan's inputs, those in one step.
        blas: call a BLAS for products of matrices, in place of loops.
        function: the name of the function.

    Raises:
        EngineError: an operator, or a form of one, is not compiled.
    """
    check_operators(model)
    [scan] = [node for node in model.graph.node if node.op_type == "Scan"]
    states = states_of(scan)
    sizes = dict[str, tuple[int, ...]]()
    for value in model.graph.input:
        dims = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        sizes[value.name] = dims if value.name in states else dims[1:]
    try:
        reader = GraphReader(model, weights or {}, sizes | dict(shapes or {}))
    except NotCompiled as error:
        raise refused(str(error)) from error
    names = [output.name for output in model.graph.output][len(reader.step.states) :]
    writer = _FunctionWriter(Plan(reader.values), names, function, blas=blas)
    memory, source = writer.memory, writer.text()
    return CSource(source, tuple(memory.arguments), memory.constants, memory.workspace, memory.seeded, blas)


class _FunctionWriter:
    """Writes the function of an epoch."""

    def __init__(self, plan: Plan, names: Sequence[str], function: str, *, blas: bool) -> None:
        self._plan, self._blas, self._function, self._out = plan, blas, function, CodeLines()
        self.memory = MemoryPlan(plan, names)
        self._kernels = KernelWriter(plan, self.memory, self._out)
        self._indexed = any(
            value.kind in ("gather", "scatter") or (value.kind == "map" and WRONG in value.info)
            for value in self.memory.values
        )

    def text(self) -> str:
        """Return the source."""
        self._out.add("const uint64_t mode = flush_subnormals();")
        self._out.add(*(self.memory.arrays or ["(void) work;"]))
        self._out.add(*([f"bool {WRONG} = false;"] if self._indexed else []))
        with self._out.block("for (int64_t step = 0; step < steps; step++)"):
            self._kernels.write(self._plan.step)
            if self._indexed:
                with self._out.block(f"if ({WRONG})"):
                    self._lose(self._plan.step.outputs)
        self._out.add("restore_subnormals(mode);")
        parts = [text.HEAD, text.FLUSHED, *self._products(), *([text.RANDOM] if self.memory.seeded else [])]
        return "".join(
            [*parts, "\n" + "\n".join([f"{self._head()} {{", *self.memory.tables, *self._out.lines, "}"]) + "\n"]
        )

    def _lose(self, outputs: Sequence[Value]) -> None:
        """Write nan into the outputs of a step."""
        for value in outputs:
            if value.dtype.kind == "f":
                self._kernels.store(value.plain, self._plan.values.constant(np.nan, value.dtype))

    def _products(self) -> list[str]:
        kinds = sorted({value.dtype.name for value in self.memory.values if value.kind == "product"})
        template = text.PRODUCT + (text.BLAS if self._blas else text.LOOPS)
        return [template.replace("LETTER", LETTERS[kind][0]).replace("TYPE", LETTERS[kind][1]) for kind in kinds]

    def _head(self) -> str:
        arrays = [
            f"{'const ' if x.role in ('row', 'constant') else ''}{C_TYPES[x.dtype.name]} *{x.c_name}"
            for x in self.memory.arguments
        ]
        numbers = ["int64_t steps", *(["uint64_t seed", "int64_t first"] if self.memory.seeded else [])]
        lines = ",\n    ".join([", ".join(numbers), *arrays, "unsigned char *work"])
        return f"void {self._function}(\n    {lines})"
