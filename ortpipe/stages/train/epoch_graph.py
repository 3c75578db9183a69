"""An epoch as one graph: a Scan over batches whose body is the train step."""

import onnx_ir as ir

from ortpipe.graph.core.builder import Names, used_names
from ortpipe.graph.core.types import IR_VERSION
from ortpipe.stages.train.step import TrainStep

BATCHES = "batches"  # the first dimension of every scanned input


def build_epoch(step: TrainStep) -> ir.Model:
    """Return Scan(carried; scanned) → (carried, losses): one run computes any number of steps.

    The step becomes the body and passes its input names on; scanned inputs have the shape [batches, …].
    """
    body = step.graph
    names, inputs = Names(used_names(body)), list[ir.Value]()
    for value in body.inputs:
        shape = [*([BATCHES] if value.name in step.scanned else []), *(value.shape or ())]
        inputs.append(ir.val(str(value.name), value.dtype, shape))
        value.name = names.fresh(f"{value.name}/of_step")
    node = ir.node("Scan", inputs, {"body": body, "num_scan_inputs": len(step.scanned)}, num_outputs=len(body.outputs))
    for output, inner in zip(node.outputs, body.outputs, strict=True):
        output.type, output.shape, output.name = inner.type, inner.shape, names.fresh(f"{inner.name}/end")
    losses = node.outputs[-1]
    losses.name, losses.shape = names.fresh("losses"), ir.Shape([BATCHES])
    graph = ir.Graph(inputs, node.outputs, nodes=[node], opset_imports=dict(body.opset_imports), name="epoch")
    return ir.Model(graph, ir_version=IR_VERSION)
