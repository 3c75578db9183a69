"""The batch dimension, which has one name everywhere: N."""

from __future__ import annotations

import onnx_ir as ir

from ortpipe.graph.query import data_inputs


def name_batch(graph: ir.Graph) -> None:
    """Name the first dimension of every data input N where it is dynamic, and drop every shape that can be inferred."""
    for value in data_inputs(graph):
        if value.shape is not None and value.shape.rank() and not isinstance(value.shape[0], int):
            value.shape = ir.Shape(["N", *list(value.shape)[1:]])
    for node in graph:
        for made in node.outputs:
            made.shape = None
