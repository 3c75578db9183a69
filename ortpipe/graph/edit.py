"""Taking graphs apart and putting them together: each function works on the model that it is given."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.builder import Names


def keep_outputs(model: ir.Model, outputs: Sequence[str]) -> None:
    """Leave of a model the part that computes these outputs; inputs that it does not read go too."""
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
    for node in dead:  # what they read is no longer used by them
        node.resize_inputs(0)


def keep_needed(graph: onnx.GraphProto, outputs: Collection[str]) -> set[str]:
    """Drop the nodes on which no value of these names depends; return the names that the others make or read.

    A name that an inner graph has of its own counts as read, too: what is left may be more than `keep_outputs` leaves.
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
    kept = onnx.GraphProto(node=reversed(nodes))
    del graph.node[:]
    graph.node.extend(kept.node)
    for values in (graph.value_info, graph.output):
        left = [value for value in values if value.name in needed]
        del values[:]
        values.extend(left)
    return needed


def part_between(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> ir.Model:
    """Return the part of a model from these values, which become its inputs, to those."""
    graph = ir.convenience.extract(model.graph, inputs, outputs)
    graph.opset_imports.update(model.graph.opset_imports)
    return ir.Model(graph, ir_version=model.ir_version)


def add_outputs(model: ir.Model, source: ir.Model, outputs: Sequence[str]) -> None:
    """Give a model more outputs, whose missing nodes move over from `source`, of which only the rest is left.

    Values of one name must hold the same in both models.
    """
    graph, present = model.graph, query.values(model.graph)
    theirs = query.values(source.graph)
    wanted = {theirs[name] for name in outputs if name not in present}
    missing = []
    for node in reversed(source.graph):
        if not wanted.isdisjoint(node.outputs):
            missing.append(node)
            read = (*(x for x in node.inputs if x is not None), *query.captured(node))
            wanted.update(x for x in read if x.name not in present)
    source.graph.outputs.clear()
    for name, value in theirs.items():
        if name in present:
            value.replace_all_uses_with(present[name])
        elif value in wanted and value.is_initializer():
            del source.graph.initializers[name]
            graph.register_initializer(value)
        elif value in wanted and value.producer() is None:
            source.graph.inputs.remove(value)
            graph.inputs.append(value)
    source.graph.remove(missing)
    graph.extend(reversed(missing))
    graph.outputs.extend(v for v in (present.get(n) or theirs[n] for n in outputs) if v not in graph.outputs)
    graph.opset_imports.update({d: v for d, v in source.opset_imports.items() if d not in graph.opset_imports})


def name_dimensions(model: ir.Model) -> None:
    """Name every nameless dimension of a model's inputs; the first input's rows are `N`.

    Different names, because nothing says that two dimensions are equal; with names, fewer shapes are computed at run
    time (33 nodes of a gradient become 14).
    """
    values = (*model.graph.inputs, *(y for node in model.graph.all_nodes() for y in node.outputs))
    known = (d for value in values if value.shape is not None for d in value.shape)
    names, inputs = Names(str(d.value) for d in known if isinstance(d, ir.SymbolicDim)), query.data_inputs(model.graph)
    for value in inputs:
        dims = list(value.shape or ())  # a shape that was read is frozen
        for axis, dim in enumerate(dims):
            if isinstance(dim, ir.SymbolicDim) and dim.value is None:
                stem = "N" if value is inputs[0] and axis == 0 else f"{value.name}_{axis}"
                dims[axis] = ir.SymbolicDim(names.fresh(stem))
        value.shape = ir.Shape(dims) if value.shape is not None else None


def set_initializers(model: ir.Model, values: Mapping[str, np.ndarray]) -> None:
    """Give initializers other values, cast to their types; they are no longer inputs."""
    for name, array in values.items():
        if (value := model.graph.initializers.get(name)) is not None:
            assert value.dtype is not None
            value.const_value = ir.tensor(array.astype(value.dtype.numpy(), copy=False), dtype=value.dtype, name=name)
    model.graph.inputs[:] = [value for value in model.graph.inputs if value.name not in values]


def initializers_to_constants(graph: ir.Graph) -> None:
    """Turn a graph's initializers into Constant nodes, which can be moved and copied like any other node."""
    for name, value in list(graph.initializers.items()):
        constant = ir.node("Constant", [], {"value": value.const_value}, name=name)
        made = constant.outputs[0]
        made.type, made.shape = value.type, value.shape
        ir.convenience.replace_all_uses_with(value, made, replace_graph_outputs=True)
        del graph.initializers[name]
        made.name = name
        graph.insert_before(graph[0], constant)


def open_initializers(model: ir.Model, names: Collection[str]) -> None:
    """Make initializers inputs too, so that other values can be fed."""
    graph = model.graph
    graph.inputs.extend(v for name, v in graph.initializers.items() if name in names and not v.is_graph_input())
