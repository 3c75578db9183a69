"""Edit graphs in place: remove, move and extract parts, set initializers."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Names


def keep_outputs(model: ir.Model, outputs: Sequence[str]) -> None:
    """Reduce a model to the part that computes these outputs, with the inputs that this part reads."""
    graph = model.graph
    by_name = query.values(graph)
    graph.outputs[:] = [by_name[name] for name in outputs]
    needed = query.ancestors(graph.outputs)  # not value.uses(): a removed node's subgraphs still count as users there
    graph.inputs[:] = [value for value in graph.inputs if value in needed]
    for name, value in list(graph.initializers.items()):
        if value not in needed:
            del graph.initializers[name]
    dead = [node for node in graph if needed.isdisjoint(node.outputs)]
    graph.remove(dead)
    for node in dead:  # so that they no longer count as users of their inputs
        node.resize_inputs(0)


def keep_needed(graph: onnx.GraphProto, outputs: Collection[str]) -> set[str]:
    """Remove the nodes on which no output of these names depends; return the names that the remaining ones use.

    Names that are local to an inner graph count as used, so more nodes may remain than with `keep_outputs`.
    """
    needed, nodes = {*outputs}, list[onnx.NodeProto]()
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output):
            nodes.append(node)
            needed.update(node.input, node.output)
            inner = [g for a in node.attribute for g in (*([a.g] if a.HasField("g") else []), *a.graphs)]
            for part in (part for g in inner for part in query.graphs(g)):
                needed.update(name for n in part.node for name in n.input)
                needed.update(value.name for value in getattr(part, "output", ()))
    remaining = onnx.GraphProto(node=reversed(nodes))
    del graph.node[:]
    graph.node.extend(remaining.node)
    for values in (graph.value_info, graph.output):
        used = [value for value in values if value.name in needed]
        del values[:]
        values.extend(used)
    return needed


def part_between(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> ir.Model:
    """Return the part of a model between `inputs`, which become its inputs, and `outputs`."""
    graph = ir.convenience.extract(model.graph, inputs, outputs)
    graph.opset_imports.update(model.graph.opset_imports)
    return ir.Model(graph, ir_version=model.ir_version)


def add_outputs(model: ir.Model, source: ir.Model, outputs: Sequence[str]) -> None:
    """Add outputs to a model; the nodes that it lacks for them are moved from `source`.

    Values of the same name must be equal in both models.
    """
    graph, present = model.graph, query.values(model.graph)
    source_values = query.values(source.graph)
    needed = {source_values[name] for name in outputs if name not in present}
    missing = []
    for node in reversed(source.graph):
        if not needed.isdisjoint(node.outputs):
            missing.append(node)
            read = (*(x for x in node.inputs if x is not None), *query.captured(node))
            needed.update(x for x in read if x.name not in present)
    source.graph.outputs.clear()
    for name, value in source_values.items():
        if name in present:
            value.replace_all_uses_with(present[name])
        elif value in needed and value.is_initializer():
            del source.graph.initializers[name]
            graph.register_initializer(value)
        elif value in needed and value.producer() is None:
            source.graph.inputs.remove(value)
            graph.inputs.append(value)
    source.graph.remove(missing)
    graph.extend(reversed(missing))
    graph.outputs.extend(v for v in (present.get(n) or source_values[n] for n in outputs) if v not in graph.outputs)
    graph.opset_imports.update({d: v for d, v in source.opset_imports.items() if d not in graph.opset_imports})


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


def set_initializers(model: ir.Model, values: Mapping[str, np.ndarray]) -> None:
    """Set initializers' values, cast to their types; they are no longer inputs."""
    for name, array in values.items():
        if (value := model.graph.initializers.get(name)) is not None:
            assert value.dtype is not None
            value.const_value = ir.tensor(array.astype(value.dtype.numpy(), copy=False), dtype=value.dtype, name=name)
    model.graph.inputs[:] = [value for value in model.graph.inputs if value.name not in values]


def initializers_to_constants(graph: ir.Graph) -> None:
    """Turn a graph's initializers into Constant nodes, which can be moved and copied like any other node."""
    for name, value in list(graph.initializers.items()):
        constant = ir.node("Constant", [], {"value": value.const_value}, name=name)
        output = constant.outputs[0]
        output.type, output.shape = value.type, value.shape
        ir.convenience.replace_all_uses_with(value, output, replace_graph_outputs=True)
        del graph.initializers[name]
        output.name = name
        graph.insert_before(graph[0], constant)


def open_initializers(model: ir.Model, names: Collection[str]) -> None:
    """Make initializers optional inputs, so that other values can be fed."""
    graph = model.graph
    graph.inputs.extend(v for name, v in graph.initializers.items() if name in names and not v.is_graph_input())
