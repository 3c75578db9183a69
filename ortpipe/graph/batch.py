"""The batch dimension, which has one name everywhere: N."""

import onnx_ir as ir

from ortpipe.errors import ModelError
from ortpipe.graph import query
from ortpipe.graph.check import infer

Declared = dict[str, ir.Shape]


def name_batch(model: ir.Model) -> ir.Model:
    """Return the model with the first dimension of every data input named N where it is dynamic, and shapes after that.

    What a file declares of other values holds where inference does not find it: behind loops whose number of steps is
    not known beforehand, and operators of other domains.
    """
    graph, renamed = model.graph, set[str | None]()
    for value in query.data_inputs(graph):
        if value.shape is not None and value.shape.rank() and not isinstance(value.shape[0], int):
            renamed |= {value.shape[0].value} - {None}
            value.shape = ir.Shape(["N", *list(value.shape)[1:]])
    declared: Declared = {}
    for node in graph:
        for made in node.outputs:
            if made.name and made.shape is not None:
                dims = ["N" if isinstance(d, ir.SymbolicDim) and d.value in renamed else d for d in made.shape]
                declared[made.name] = ir.Shape(dims)
            made.shape = None
    infer(model)
    for opaque in (True, False):
        if _declare(model, declared, opaque=opaque):
            infer(model)
    for node in graph:
        for made in node.outputs:
            if made.type is None and (made.uses() or made.is_graph_output()):
                said = f"{node.domain or 'ai.onnx'}.{node.op_type} at node {node.name or made.name!r}"
                raise ModelError(
                    "The type of every value must be known.",
                    got=f"{said} gives {made.name!r}, of which nothing is known",
                    fix=f"Declare {made.name!r} in the file (value_info), or export the model without this operator.",
                )
    return model


def _declare(model: ir.Model, declared: Declared, *, opaque: bool) -> bool:
    """Put declared shapes where there are none, first only behind the operators that inference stops at."""
    changed = False
    for node in model.graph:
        if opaque and not node.domain and not query.subgraphs(node):
            continue
        for made in node.outputs:
            if made.shape is None and made.name in declared:
                made.shape, changed = declared[made.name], True
    return changed
