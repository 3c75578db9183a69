"""Adding a scaled gradient to a parameter or its velocity without a pass of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

    from ortpipe.graph.builder import Builder


def plus(op: Builder, x: ir.Value, step: ir.Value) -> ir.Value:
    """Return x + step; where the step is a matrix product, the product is accumulated onto x: A·B + x."""
    node = step.producer()
    if node is None or node.op_type != "Gemm" or node.inputs[2:] or step.uses() or step.shape != x.shape:
        return op.Add(x, step)
    attributes = {name: a.value for name, a in node.attributes.items()}
    made: ir.Value = op.Gemm(*node.inputs, x, **{**attributes, "beta": 1.0})  # the training build writes beta = 0
    return made
