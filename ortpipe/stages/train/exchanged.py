"""The gradients of a step as inputs, for steps whose gradients are computed by workers."""

import onnx_ir as ir

from ortpipe.artifact import Facts
from ortpipe.graph.core import query


def exchanged(model: ir.Model, facts: Facts, wide: ir.DataType) -> ir.Model:
    """Return the gradient model with an input of type `wide` in place of the nodes of each output.

    Parameters and running statistics stay, so that a step can carry them.
    """
    old = query.values(model.graph)
    like = {new: old[name] for name, new in (*facts.gradients.items(), *facts.statistics.items())}
    kinds = {new: old[name].dtype for name, new in facts.statistics.items()}
    carried = (*facts.gradients, *facts.statistics, str(facts.output_gradient))
    initializers = [
        ir.Value(name=name, type=old[name].type, shape=old[name].shape, const_value=old[name].const_value)
        for name in carried
        if name in model.graph.initializers
    ]
    inputs, nodes = list[ir.Value](), list[ir.Node]()
    for output in model.graph.outputs:
        name, shape = str(output.name), like[str(output.name)].shape if output.name in like else ir.Shape([])
        inputs.append(ir.Value(name=received(name), type=ir.TensorType(wide), shape=shape))
        node = ir.node("Cast", inputs[-1:], {"to": kinds.get(name) or wide})
        node.outputs[0].name, node.outputs[0].shape = name, shape
        node.outputs[0].type = ir.TensorType(kinds.get(name) or wide)
        nodes.append(node)
    graph = ir.Graph(
        [*initializers, *inputs],
        [node.outputs[0] for node in nodes],
        nodes=nodes,
        initializers=initializers,
        opset_imports=dict(model.graph.opset_imports),
        name="update",
    )
    return ir.Model(graph, ir_version=model.ir_version)


def received(name: str) -> str:
    """Return the name of the input that replaces an output."""
    return f"received/{name}"
