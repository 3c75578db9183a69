"""Return the C source of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from ortpipe.runtime.c.memory import Argument
from ortpipe.runtime.c.plan import Plan
from ortpipe.runtime.c.reader import GraphReader, check_operators
from ortpipe.runtime.c.values import NotCompiled, refused
from ortpipe.runtime.c.write import FunctionWriter


@dataclass(frozen=True)
class CSource:
    """A function in C: `void epoch(int64_t steps, …, unsigned char *work)`.

    Attributes:
        text: the source.
        arguments: the arrays between `steps` and `work`, in order; see `Argument`.
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
    [*_, scan] = model.graph.node
    scanned = set(scan.input[-next(a.i for a in scan.attribute if a.name == "num_scan_inputs") :])
    sizes = dict[str, tuple[int, ...]]()
    for value in model.graph.input:
        dims = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        sizes[value.name] = dims[1:] if value.name in scanned else dims
    try:
        reader = GraphReader(model, weights or {}, sizes | dict(shapes or {}))
    except NotCompiled as error:
        raise refused(str(error)) from error
    names = [output.name for output in model.graph.output][len(reader.states) :]
    writer = FunctionWriter(Plan(reader.values, reader.top, reader.step), names, function, blas=blas)
    memory, text = writer.memory, writer.text()
    return CSource(text, tuple(memory.arguments), memory.constants, memory.workspace, writer.seeded, blas)
