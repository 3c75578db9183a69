"""The scalar whose gradients are the vector-Jacobian products of several outputs."""

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir import Value

from ortpipe.graph.builder import Builder


def seeded_sum(op: Builder, outputs: Sequence[Value], *, fill: bool = False) -> tuple[Value, dict[str, str]]:
    """Return Σ output · seed, a scalar, and each output's seed: a new input of its shape, `<output>_grad`.

    With `fill` the seeds are ones, and no inputs.
    """
    seeds, total = dict[str, str](), None
    for output in outputs:
        assert output.dtype is not None
        term = output
        if not fill:
            shape = [d if isinstance(d, int) else d.value for d in output.shape] if output.shape is not None else []
            seed = op.input(f"{output.name}_grad", output.dtype, shape)
            seed.shape = output.shape
            seeds[str(output.name)] = str(seed.name)
            term = op.Mul(output, seed)
            term.type, term.shape = output.type, output.shape
        if fill or output.shape is None or output.shape.rank():
            term = op.ReduceSum(term, keepdims=0)
        term.type, term.shape = output.type, ir.Shape([])
        if total is not None:
            term = op.Add(total, term if term.dtype == total.dtype else op.cast(term, total))
            term.type, term.shape = total.type, ir.Shape([])
        total = term
    assert total is not None
    return total, seeds
