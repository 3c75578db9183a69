"""Queries of a graph: its values, its parameters, and their dependencies."""

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, *HALVES)


def values(graph: ir.Graph) -> dict[str, ir.Value]:
    """Return a graph's values by name, without those of its subgraphs."""
    return ir.convenience.create_value_mapping(graph, include_subgraphs=False)


def value(graph: ir.Graph, name: str) -> ir.Value:
    """Return the input, initializer or node output of that name (KeyError: there is none)."""
    return values(graph)[name]


def sizes(value: ir.Value | None) -> list[int | None] | None:
    """Return a value's dimensions, None for an unknown one; None if the rank is unknown."""
    if value is None or value.shape is None:
        return None
    return [d if isinstance(d, int) else None for d in value.shape]


def width(value: ir.Value | None) -> int | None:
    """Return a value's last dimension, if known."""
    return (sizes(value) or [None])[-1]


def called(node: ir.Node) -> str:
    """Return a node's description for messages."""
    return f"{f'{node.domain}.' if node.domain else ''}{node.op_type} at node {node.name or node.outputs[0].name!r}"


def data_inputs(graph: ir.Graph) -> list[ir.Value]:
    """Return the inputs that must be fed; before IR 4, weights are inputs too."""
    return [value for value in graph.inputs if not value.is_initializer()]


def ancestors(outputs: Iterable[ir.Value]) -> set[ir.Value]:
    """Return every value that the outputs depend on, the outputs and subgraphs' captures included."""
    seen: set[ir.Value] = set()
    stack = list(outputs)
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        node = current.producer()
        if node is not None:
            stack.extend(v for v in node.inputs if v is not None)
            stack.extend(captured(node))
    return seen


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """Return a control-flow node's direct subgraphs."""
    return [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]


def captured(node: ir.Node) -> list[ir.Value]:
    """Return the outer values that a control-flow node's subgraphs read, at any depth; each once."""
    return list(dict.fromkeys(v for graph in subgraphs(node) for v in free(graph)))


def free(graph: ir.Graph) -> list[ir.Value]:
    """Return the outer values that a graph's nodes and outputs read; each once."""
    defined = {*graph.inputs, *graph.initializers.values(), *(o for n in graph for o in n.outputs)}
    read = [v for n in graph for v in (*n.inputs, *captured(n)) if v is not None]
    return list(dict.fromkeys(v for v in (*read, *graph.outputs) if v not in defined))


def float_initializers(graph: ir.Graph, *outputs: ir.Value) -> list[str]:
    """Return the names of the float initializers that any of `outputs` depends on, in the graph's order."""
    needed = ancestors(outputs)
    return [name for name, v in graph.initializers.items() if v in needed and v.dtype in FLOATS]


def array(initializer: ir.Value) -> np.ndarray:
    """Return a copy of an initializer's array."""
    if initializer.const_value is None:
        raise KeyError(f"{initializer.name} has no value")
    return np.array(initializer.const_value.numpy())


def tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of a constant or an initializer, None for other values."""
    node = value.producer() if value is not None else None
    is_constant = node is not None and node.op_type == "Constant" and not node.domain
    if node is not None and is_constant and "value" in node.attributes and not node.attributes["value"].is_ref():
        return node.attributes["value"].as_tensor()  # get_const_tensor would name it after the value
    return ir.convenience.get_const_tensor(value) if value is not None else None


def constant(value: ir.Value | None) -> np.ndarray | None:
    """Return the array of a constant or an initializer, None for other values."""
    const_tensor = tensor(value)
    return None if const_tensor is None else const_tensor.numpy()


def axes(node: ir.Node, rank: int | None) -> list[int] | None:
    """Return the axes of a reduction, Squeeze or Unsqueeze, in order and counted from 0; None if they are not known.

    If a node names none, they are all, or none with `noop_with_empty_axes`. Without a rank they are returned as
    they are written.
    """
    named, listed = list[int](), node.inputs[1] if len(node.inputs) > 1 else None
    if listed is not None:
        array = None if listed.is_graph_input() else constant(listed)
        if array is None:
            return None
        named = array.ravel().tolist()
    if not named and not node.attributes.get_int("noop_with_empty_axes", 0):
        return None if rank is None else list(range(rank))
    return sorted(axis % rank for axis in named) if rank is not None else named
