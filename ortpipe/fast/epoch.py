"""The epoch graph as the passes of this folder see it, for batches of a known size."""

from dataclasses import dataclass

import onnx_ir as ir

from ortpipe.graph.core.inference import infer
from ortpipe.graph.importing.sizes import fold_sizes


@dataclass(frozen=True)
class EpochGraph:
    """Scan(carried; scanned) → (carried, losses): one run computes any number of steps."""

    model: ir.Model  # inputs have the step's names, scanned ones shape [batches, …]; outputs: carried values, losses
    seed: str | None = None  # the body's initializer that starts the backward pass, if there is one
    gradients: tuple[str, ...] = ()  # the names of the gradients in the body

    @property
    def scan(self) -> ir.Node:
        """The Scan."""
        [scan] = [node for node in self.model.graph if node.op_type == "Scan"]
        return scan

    @property
    def body(self) -> ir.Graph:
        """The step."""
        return self.scan.attributes["body"].as_graph()


def fix_batch_size(model: ir.Model, size: int) -> None:
    """Specialize an epoch for batches of exactly `size` rows: values that only depend on N become constants."""
    inner = [(*graph.inputs, *_between(graph), *graph.outputs) for graph in model.graph.subgraphs()]
    values = [value for values in inner for value in values]
    for value in (*model.graph.inputs, *model.graph.outputs, *values):
        if value.shape is not None and not value.shape.is_static():
            value.shape = ir.Shape([_fixed(dim, size) for dim in value.shape])
    if not all(value.type is not None and value.shape is not None and value.shape.is_static() for value in values):
        for graph in model.graph.subgraphs():
            for value in _between(graph):
                value.shape = None
        infer(model)
    fold_sizes(model)


def _fixed(dim: int | ir.SymbolicDim, size: int) -> int | ir.SymbolicDim:
    """Return the number of rows for N, and for N/K if K slices have equally many."""
    name, _, slices = str(dim).partition("/")
    parts = int(slices) if slices.isdigit() else 1 if dim == "N" else 0
    return size // parts if name == "N" and parts and size % parts == 0 else dim


def _between(graph: ir.Graph) -> list[ir.Value]:
    return [value for node in graph for value in node.outputs if not value.is_graph_output()]


def maker_for_one(value: ir.Value | None) -> ir.Node | None:
    """Return the node that makes a value which one other node reads, and nothing else."""
    alone = value is not None and len(value.uses()) == 1 and not value.is_graph_output()
    return value.producer() if value is not None and alone else None
