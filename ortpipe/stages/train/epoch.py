"""The epoch as one graph: a Scan over batches whose body is the train step."""

from dataclasses import dataclass

import onnx_ir as ir

from ortpipe.graph.builder import Names, used_names
from ortpipe.graph.serial import IR_VERSION
from ortpipe.stages.train.step import TrainStep

BATCHES = "batches"  # the first dimension of every scanned input


@dataclass(frozen=True)
class EpochGraph:
    """Scan(carried; scanned) → (carried, losses): one run does any number of steps."""

    model: ir.Model  # inputs have the step's names, scanned ones shape [batches, …]; outputs: what is carried, losses
    seed: str | None = None  # the body's initializer that the backward pass starts from; None: there is none
    gradients: tuple[str, ...] = ()  # the names of those that it ends with, in the body

    @property
    def scan(self) -> ir.Node:
        """The Scan."""
        [scan] = [node for node in self.model.graph if node.op_type == "Scan"]
        return scan

    @property
    def body(self) -> ir.Graph:
        """The step."""
        return self.scan.attributes["body"].as_graph()

    def put_behind(self, place: int, value: ir.Value) -> None:
        """Let the epoch give this value, made of the output that it gave, under that one's name, type and shape."""
        outputs = self.model.graph.outputs
        ended = outputs[place]
        value.type, value.shape, outputs[place] = ended.type, ended.shape, value
        ended.name, value.name = value.name, ended.name


def build_epoch(step: TrainStep) -> EpochGraph:
    """Return the epoch of a step, which becomes its body and leaves it the names of its inputs."""
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
    return EpochGraph(ir.Model(graph, ir_version=IR_VERSION), step.seed, step.gradients)
