"""The epoch as one graph: a Scan over batches whose body is the train step."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ortpipe.graph.builder import Names, used_names
from ortpipe.graph.check import finish
from ortpipe.graph.serial import IR_VERSION
from ortpipe.graph.sizes import with_sizes
from ortpipe.stages.train.biases import with_biases_as_rows
from ortpipe.stages.train.hoist import hoisted
from ortpipe.stages.train.step import Step
from ortpipe.stages.train.update import shape_of

BATCHES = "batches"  # the first dimension of every scanned input


def with_batch_size(model: onnx.ModelProto, size: int) -> onnx.ModelProto:
    """Return the epoch for batches of exactly `size` rows: what depends on N alone becomes constant on loading."""
    own = ir.from_proto(model)
    [scan] = own.graph
    body = scan.attributes["body"].as_graph()
    inner = [node.attributes["body"].as_graph() for node in body if node.op_type == "Scan"]
    for graph in (own.graph, body, *inner):
        for value in (*graph.inputs, *graph.outputs):
            if value.shape is not None:
                value.shape = ir.Shape([size if d == "N" else d for d in value.shape])
    for node in body.all_nodes():
        for made in node.outputs:
            made.shape = None
    return with_biases_as_rows(hoisted(with_sizes(finish(own))))


def build_epoch(step: Step) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return Scan(carried; scanned) → (carried, losses), and the epoch's input name of each name of the step.

    One run does any number of steps: scanned inputs have shape [batches, …], and the batch size N may differ from
    run to run. Outputs are the carried values in the step's order, then `losses` [batches].
    """
    body = step.graph
    names = Names(used_names(body))
    outer: dict[str, ir.Value] = {}
    for value in body.inputs:
        name = str(value.name)
        shape = shape_of(value)
        scanned = [BATCHES, *shape] if name in step.scanned else shape
        outer[name] = ir.val(
            names.fresh(f"{name}/{BATCHES if name in step.scanned else 'start'}"), value.dtype, scanned
        )
    inputs = [outer[name] for name in (*step.carried, *step.scanned)]
    node = ir.node("Scan", inputs, {"body": body, "num_scan_inputs": len(step.scanned)}, num_outputs=len(body.outputs))
    for made, inner in zip(node.outputs, body.outputs, strict=True):
        made.type = inner.type
        made.shape = inner.shape
        made.name = names.fresh(f"{inner.name}/end")
    losses = node.outputs[-1]
    losses.shape, losses.name = ir.Shape([BATCHES]), names.fresh("losses")
    graph = ir.Graph(inputs, node.outputs, nodes=[node], opset_imports=step.opsets, name="epoch")
    return finish(ir.Model(graph, ir_version=IR_VERSION)), {name: str(v.name) for name, v in outer.items()}
