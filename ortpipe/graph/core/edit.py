"""Edit graphs in place: cut them to the part behind some outputs, set initializers."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core import query


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


def set_initializers(model: ir.Model, values: Mapping[str, np.ndarray]) -> None:
    """Set initializers' values, cast to their types; they are no longer inputs."""
    for name, array in values.items():
        if (value := model.graph.initializers.get(name)) is not None:
            assert value.dtype is not None
            value.const_value = ir.tensor(array.astype(value.dtype.numpy(), copy=False), dtype=value.dtype, name=name)
    model.graph.inputs[:] = [value for value in model.graph.inputs if value.name not in values]


def open_initializers(model: ir.Model, names: Collection[str]) -> None:
    """Make initializers optional inputs, so that other values can be fed."""
    graph = model.graph
    graph.inputs.extend(v for name, v in graph.initializers.items() if name in names and not v.is_graph_input())
