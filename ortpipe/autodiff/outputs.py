"""The public names of derivatives."""

from collections.abc import Collection, Mapping

import onnx_ir as ir
from onnx_ir import Graph, Value

from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Names, used_names


def named(graph: Graph, results: Mapping[str, Value], reserved: Collection[str] = ()) -> dict[str, Value]:
    """Give each result its public name, or the first free variant, and return the results by requested name.

    A result is copied to a new value if it is an input, an initializer, another output, a duplicate or reserved.
    """
    values, taken = dict[str, Value](), {output for output in graph.outputs if output not in results.values()}
    taken |= {value for value in results.values() if value.name in reserved}
    for name, value in results.items():
        if value in taken or value.producer() is None:
            node = ir.node("Identity", [value])
            graph.append(node)
            node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
            value = node.outputs[0]
        values[name] = value
        taken.add(value)
    names = Names(used_names(graph) - {str(value.name) for value in values.values()})
    for name, value in values.items():
        value.name = names.fresh(name)
    return values


def name_gradients(graph: Graph, gradients: Mapping[str, str], reserved: Collection[str]) -> dict[str, str]:
    """Name the gradients <parameter>_grad, <input>_grad and return the names; each has its parameter's shape.

    A reserved value that is also a gradient (e^x is its own) keeps its name.
    """
    by_name = query.values(graph)
    values = named(graph, {f"{name}_grad": by_name[gradient] for name, gradient in gradients.items()}, reserved)
    for name in gradients:
        values[f"{name}_grad"].shape = by_name[name].shape
    return {name: str(values[f"{name}_grad"].name) for name in gradients}
