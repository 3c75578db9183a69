"""The gradients of a step that is split over workers or devices: as inputs, if workers compute them."""

import onnx_ir as ir

from ortpipe.artifact import Facts
from ortpipe.graph.core import query
from ortpipe.parallel import ParallelConfig
from ortpipe.stages.train.slice_draws import draw_by_seed
from ortpipe.stages.train.sliced import sliced


def in_parallel(model: ir.Model, facts: Facts, config: ParallelConfig, wide: ir.DataType) -> ir.Model:
    """Return the gradient model of a step for this kind of training; its updates have the type `wide`."""
    if config.transport == "devices":
        return sliced(model, facts, config.slices, wide)
    if config.every == "step":
        return exchanged(model, facts, wide)
    draw_by_seed(model)
    return model


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
