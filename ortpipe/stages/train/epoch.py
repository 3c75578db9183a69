"""The epoch as one graph: a Scan over batches whose body is the train step."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from ortpipe.graph.builder import Names, used_names
from ortpipe.graph.serial import IR_VERSION
from ortpipe.stages.train.step import TrainStep

BATCHES = "batches"  # the first dimension of every scanned input


@dataclass(frozen=True)
class EpochGraph:
    """Scan(carried; scanned) → (carried, losses): one run does any number of steps.

    Attributes:
        model: scanned inputs have shape [batches, …], losses [batches]; carried values are in the step's order.
        names: the epoch's input name of each name of the step.
        seed: the body's initializer that the backward pass starts from; None: there is none.
        gradients: the names of the gradients that it ends with, in the body.
    """

    model: ir.Model
    names: Mapping[str, str] = field(default_factory=dict)
    seed: str | None = None
    gradients: tuple[str, ...] = ()

    @property
    def scan(self) -> ir.Node:
        """The Scan."""
        [scan] = [node for node in self.model.graph if node.op_type == "Scan"]
        return scan

    @property
    def body(self) -> ir.Graph:
        """The step."""
        return self.scan.attributes["body"].as_graph()


def build_epoch(step: TrainStep) -> EpochGraph:
    """Return the epoch of a step, which becomes its body."""
    body = step.graph
    names = Names(used_names(body))
    outer: dict[str, ir.Value] = {}
    for value in body.inputs:
        name, scanned = str(value.name), value.name in step.scanned
        shape = ir.Shape([*([BATCHES] if scanned else []), *(value.shape or ())])
        outer[name] = ir.val(names.fresh(f"{name}/{BATCHES if scanned else 'start'}"), value.dtype, shape)
    inputs = [outer[name] for name in (*step.carried, *step.scanned)]
    node = ir.node("Scan", inputs, {"body": body, "num_scan_inputs": len(step.scanned)}, num_outputs=len(body.outputs))
    for output, inner in zip(node.outputs, body.outputs, strict=True):
        output.type, output.shape, output.name = inner.type, inner.shape, names.fresh(f"{inner.name}/end")
    losses = node.outputs[-1]
    losses.shape, losses.name = ir.Shape([BATCHES]), names.fresh("losses")
    graph = ir.Graph(inputs, node.outputs, nodes=[node], opset_imports=dict(body.opset_imports), name="epoch")
    epoch = {name: str(value.name) for name, value in outer.items()}
    return EpochGraph(ir.Model(graph, ir_version=IR_VERSION), epoch, step.seed, step.gradients)
