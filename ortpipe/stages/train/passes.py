"""What makes an epoch fast: passes over its finished graph, each of which leaves it the same function."""

import dataclasses
from collections.abc import Callable

import onnx
import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.check import finish, infer
from ortpipe.graph.sizes import fold_sizes
from ortpipe.stages.train.biases import carry_biases_as_rows
from ortpipe.stages.train.epoch import EpochGraph
from ortpipe.stages.train.hoist import hoist


def start_at_rate(epoch: EpochGraph) -> None:
    """Let the backward pass start from −η, where every gradient is multiplied by it first: it is linear."""
    body = epoch.body
    gradients = [query.value(body, name) for name in epoch.gradients]
    scaling = [use.node for gradient in gradients for use in gradient.uses()]
    rates = {x for node in scaling for x in node.inputs if x not in gradients}
    seed = body.initializers.get(epoch.seed or "")
    if seed is None or len(rates) != 1 or any(node.op_type != "Mul" for node in scaling):
        return
    [rate] = rates
    assert rate is not None
    if rate not in body.inputs or rate.shape != seed.shape or query.array(seed) != 1:
        return
    body.initializers.pop(str(seed.name))
    ir.convenience.replace_all_uses_with(seed, rate)
    for node in scaling:
        [gradient] = [x for x in node.inputs if x is not rate]
        assert gradient is not None
        ir.convenience.replace_all_uses_with(node.outputs[0], gradient)
        body.remove(node, safe=True)


def accumulate_in_products(epoch: EpochGraph) -> None:
    """Let x + A·B be one Gemm: the product is accumulated onto x, without a pass of its own."""
    body = epoch.body
    for node in [node for node in body if node.op_type == "Add"]:
        for x, product in (node.inputs, node.inputs[::-1]):
            made = product.producer() if product is not None else None
            if x is None or product is None or made is None or made.op_type != "Gemm" or any(made.inputs[2:]):
                continue
            if len(product.uses()) == 1 and not product.is_graph_output() and product.shape == x.shape:
                attributes = {**made.attributes, "beta": ir.AttrFloat32("beta", 1.0)}  # the training build writes 0
                gemm = ir.node("Gemm", [*made.inputs[:2], x], attributes, name=node.name)
                ir.convenience.replace_nodes_and_values(body, node, [node, made], [gemm], node.outputs, gemm.outputs)
                break


# in order: what the first leaves is what the next looks for
PASSES: tuple[Callable[[EpochGraph], None], ...] = (start_at_rate, accumulate_in_products, hoist, carry_biases_as_rows)


def for_batch_size(epoch: EpochGraph, size: int) -> onnx.ModelProto:
    """Return the epoch for batches of exactly `size` rows, passed over: what depends on N alone is constant."""
    model = ir.from_proto(ir.to_proto(epoch.model))  # a clone shares what the passes change
    sized = dataclasses.replace(epoch, model=model)
    body = sized.body
    inner = [node.attributes["body"].as_graph() for node in body if node.op_type == "Scan"]
    for graph in (model.graph, body, *inner):
        for value in (*graph.inputs, *graph.outputs):
            if value.shape is not None:
                value.shape = ir.Shape([size if d == "N" else d for d in value.shape])
    for node in body.all_nodes():
        for value in node.outputs:
            value.shape = None
    infer(model)
    fold_sizes(model)
    for pass_over in PASSES:
        pass_over(sized)
    return finish(model)
