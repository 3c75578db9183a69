"""The batch dimension, which has one name everywhere: N."""

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from ortpipe.errors import ModelError
from ortpipe.graph import query
from ortpipe.graph.check import infer
from ortpipe.graph.operators import OF_FIRST_TYPE

Declared = dict[str, ir.Shape]


def plain_dimensions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with sizes that are none, as some exporters declare them, free: −1, and 0 of inputs."""

    def wrong(values: Iterable[onnx.ValueInfoProto], least: int) -> list[onnx.TensorShapeProto.Dimension]:
        dims = [d for value in values for d in value.type.tensor_type.shape.dim]
        return [d for d in dims if d.HasField("dim_value") and d.dim_value < least]

    def all_wrong(model: onnx.ModelProto) -> list[onnx.TensorShapeProto.Dimension]:
        outer = (*model.graph.input, *model.graph.output)
        inner = [v for g in query.graphs(model.graph) for v in (*g.value_info, *g.input, *g.output)]
        return [*wrong(outer, 1), *wrong(inner, 0)]

    if not all_wrong(model):
        return model
    own = onnx.ModelProto()
    own.CopyFrom(model)
    for dim in all_wrong(own):
        dim.ClearField("dim_value")
    return own


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
        if node.outputs[0].type is None and node.op_type in OF_FIRST_TYPE and not node.domain and node.inputs[0]:
            node.outputs[0].type = node.inputs[0].type
        for made in node.outputs:
            if made.type is None and (made.uses() or made.is_graph_output()):
                said = f"{node.domain or 'ai.onnx'}.{node.op_type} at node {node.name or made.name!r}"
                raise ModelError(
                    "The type of every value must be known.",
                    got=f"{said} gives {made.name!r}, of which nothing is known",
                    fix="End the graph in front of it with convert.source.prediction, or declare its type in the file.",
                )
    return model


def _declare(model: ir.Model, declared: Declared, *, opaque: bool) -> bool:
    """Put declared shapes where there are none, first only behind the operators that inference stops at."""
    changed = False
    for node in model.graph:
        if opaque and not node.domain and not query.subgraphs(node):
            continue
        for made in node.outputs:
            if made.shape is None and made.name in declared and _may_have(made, declared[made.name]):
                made.shape, changed = declared[made.name], True
    return changed


def _may_have(made: ir.Value, shape: ir.Shape) -> bool:
    """Say whether a value may have this many dimensions: the size of a Reshape's target says how many there are."""
    node = made.producer()
    target = node.inputs[1] if node is not None and node.op_type == "Reshape" and not node.domain else None
    entries = target.shape[0] if target is not None and target.shape else None
    if not isinstance(entries, int) or entries == shape.rank():
        return True
    made.shape = ir.Shape([None] * entries)
    return False
