"""Outputs that are not a scalar loss."""

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir import Graph, Value

from ortpipe.errors import DeriveError, nearest
from ortpipe.facts import Facts
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.types import is_scalar


def sum_of_outputs(
    graph: Graph, facts: Facts, names: Sequence[str | None], *, fill: bool
) -> tuple[Value, Value | None, dict[str, str]]:
    """Return Σ output · seed, a scalar; the output, if it is the only one and a scalar; and each output's seed.

    A seed is a new input of the output's shape, `<output>_grad`. With `fill` those of other outputs than a scalar are
    ones, and no inputs.
    """
    if tuple(names) == (facts.loss,):
        _make_scalar(graph, facts.loss)
    outputs = [_differentiable(graph, name) for name in names]
    scalar = outputs[0] if len(outputs) == 1 and is_scalar(outputs[0]) else None
    fill = fill and scalar is None
    op, seeds, total = Builder(graph, "derive"), dict[str, str](), None
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
    return total, scalar, seeds


def _make_scalar(graph: Graph, name: str | None) -> None:
    """Make a loss that has one element and dimensions a scalar of the same name."""
    loss = next((o for o in graph.outputs if o.name == name), None)
    if loss is None or loss.shape is None or not loss.shape or any(d != 1 for d in loss.shape):
        return
    op = Builder(graph, "derive")
    scalar = op.Reshape(loss, [])
    scalar.shape = ir.Shape([])
    graph.outputs[graph.outputs.index(loss)] = scalar
    op.rename(loss, f"{name}/one")
    scalar.name = name


def _differentiable(graph: Graph, output: str | None) -> Value:
    """Return the loss, or the output that the config names."""
    values = query.values(graph)
    if output is None or output not in values:
        rule = "derive differentiates the loss, or the output that {at}output names."
        fix = "Run add_loss first, or " + nearest(output or "", [str(o.name) for o in graph.outputs])
        raise DeriveError(rule, got=repr(output), fix=fix)
    value = values[output]
    if value.dtype is None or value.dtype not in query.FLOATS:
        raise DeriveError(
            "Only float outputs have gradients.", got=f"{output!r} of type {value.dtype}", fix="Name another."
        )
    return value
