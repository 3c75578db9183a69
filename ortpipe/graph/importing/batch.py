"""Name the batch dimension N everywhere, and other unknown dimensions."""

import onnx
import onnx_ir as ir

from ortpipe.errors import ModelError
from ortpipe.graph.core import protos, query
from ortpipe.graph.core.builder import Names
from ortpipe.graph.core.inference import infer
from ortpipe.graph.core.operators import having

Declared = dict[str, ir.Shape]
FIRST_TYPE = having("first_type", "reduces")


def plain_dimensions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with invalid sizes made dynamic: some exporters declare −1, or 0 for inputs."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    graph = fixed.graph
    values = [(v, 0) for g in protos.graphs(graph) for v in (*g.value_info, *g.input, *g.output)]
    values += [(v, 1) for v in (*graph.input, *graph.output)]  # with the least valid size
    for dim, least in ((dim, least) for value, least in values for dim in value.type.tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value < least:
            dim.ClearField("dim_value")
    return fixed


def name_batch(model: ir.Model) -> ir.Model:
    """Name the first dimension of every data input N if it is dynamic, and infer the shapes again; return the model.

    The file's declared shapes are used where inference finds none: after loops with an unknown number of steps, and
    after operators of other domains.
    """
    graph, renamed, names = model.graph, set[str | None](), dict[str, None]()  # "N" if the file calls another size so
    for value, shape in [(v, v.shape) for v in query.data_inputs(graph) if v.shape is not None and v.shape.rank()]:
        first, *others = shape
        names |= {"N": None} if first != "N" and "N" in others else {}
        renamed |= set() if isinstance(first, int) else {first.value} - {None}
        value.shape = ir.Shape([first if isinstance(first, int) else "N", *(names.get(str(d), d) for d in others)])
    declared: Declared = {}
    for node in graph:
        for output in node.outputs:
            if output.name and output.shape is not None:
                free = [names.get(str(d), d) for d in output.shape]
                dims = ["N" if isinstance(d, ir.SymbolicDim) and d.value in renamed else d for d in free]
                declared[output.name] = ir.Shape(dims)
            output.shape = None
    infer(model)
    for opaque in (True, False):
        if _declare(model, declared, opaque=opaque):
            infer(model)
    for node in graph:
        if node.outputs[0].type is None and node.op_type in FIRST_TYPE and not node.domain and node.inputs[0]:
            node.outputs[0].type = node.inputs[0].type
        for output in node.outputs:
            if output.type is None and (output.uses() or output.is_graph_output()):
                operator = f"{node.domain or 'ai.onnx'}.{node.op_type} at node {node.name or output.name!r}"
                raise ModelError(
                    "The type of every value must be known.",
                    got=f"{operator} gives {output.name!r}, whose type is unknown",
                    fix="End the graph before it{@cut}, or declare its type in the file.",
                )
    return model


def _declare(model: ir.Model, declared: Declared, *, opaque: bool) -> bool:
    """Set declared shapes where there are none; `opaque` does so only after operators that inference stops at."""
    changed = False
    for node in model.graph:
        if opaque and not node.domain and not query.subgraphs(node):
            continue
        for output in node.outputs:
            if output.shape is None and output.name in declared and _may_have(output, declared[output.name]):
                output.shape, changed = declared[output.name], True
    return changed


def _may_have(value: ir.Value, shape: ir.Shape) -> bool:
    """Return whether a value may have this many dimensions; for a Reshape, its target's size decides."""
    node = value.producer()
    target = node.inputs[1] if node is not None and node.op_type == "Reshape" and not node.domain else None
    entries = target.shape[0] if target is not None and target.shape else None
    if not isinstance(entries, int) or entries == shape.rank():
        return True
    value.shape = ir.Shape([None] * entries)
    return False


def name_dimensions(model: ir.Model) -> None:
    """Name every unnamed dimension of a model's inputs; the first input's rows are `N`.

    The names differ, because two dimensions need not be equal. With names, fewer shapes are computed at run time (33
    nodes of a gradient become 14).
    """
    values = (*model.graph.inputs, *(y for node in model.graph.all_nodes() for y in node.outputs))
    dimensions = (d for value in values if value.shape is not None for d in value.shape)
    names = Names(str(d.value) for d in dimensions if isinstance(d, ir.SymbolicDim))
    inputs = query.data_inputs(model.graph)
    for value in inputs:
        dims = list(value.shape or ())  # the shape of a parsed model is frozen
        for axis, dim in enumerate(dims):
            if isinstance(dim, ir.SymbolicDim) and dim.value is None:
                stem = "N" if value is inputs[0] and axis == 0 else f"{value.name}_{axis}"
                dims[axis] = ir.SymbolicDim(names.fresh(stem))
        value.shape = ir.Shape(dims) if value.shape is not None else None
