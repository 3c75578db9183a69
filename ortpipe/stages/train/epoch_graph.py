"""An epoch as one graph: a Scan over batches whose body is the train step.

`speed` is the one place where `ortpipe.fast` enters training. Training also works without that folder, only slower.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module

import onnx
import onnx_ir as ir

from ortpipe.artifact import Arrays
from ortpipe.graph.core.check import infer
from ortpipe.graph.importing.sizes import fold_sizes
from ortpipe.runtime.config import RuntimeConfig

BATCHES = "batches"  # the first dimension of every scanned input
GUEST = "ortpipe.fast"


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


def for_batch_size(epoch: EpochGraph, size: int) -> ir.Model:
    """Specialize the epoch for batches of exactly `size` rows: values that only depend on N become constants."""
    model = epoch.model
    inner = [(*graph.inputs, *_between(graph), *graph.outputs) for graph in model.graph.subgraphs()]
    values = [value for values in inner for value in values]
    for value in (*model.graph.inputs, *model.graph.outputs, *values):
        if value.shape is not None and "N" in [*value.shape]:
            value.shape = ir.Shape([size if d == "N" else d for d in value.shape])
    if not all(value.type is not None and value.shape is not None and value.shape.is_static() for value in values):
        for graph in model.graph.subgraphs():
            for value in _between(graph):
                value.shape = None
        infer(model)
    fold_sizes(model)
    return model


def _between(graph: ir.Graph) -> list[ir.Value]:
    return [value for node in graph for value in node.outputs if not value.is_graph_output()]


class Speed:
    """Hooks that make training faster. The defaults do nothing; `ortpipe.fast` overrides them."""

    def stacks(self, arrays: Arrays) -> Iterable[Sequence[str]]:
        """Return groups of parameter names; a step carries each group as one array."""
        return [[name] for name in arrays]

    def rewrite(self, epoch: EpochGraph, runtime: RuntimeConfig | None) -> None:
        """Rewrite an epoch graph of a known batch size, in place, for the engine that runs it."""

    def prepare(self, model: onnx.ModelProto) -> bool:
        """Sort the nodes of a model for its session; return whether the session plans its memory."""
        return False


@functools.cache
def speed() -> Speed:
    """Return the hooks of `ortpipe.fast`, or the defaults if the folder is missing."""
    try:
        guest: Speed = import_module(GUEST).Fast()
    except ModuleNotFoundError as error:
        if error.name != GUEST:
            raise
        return Speed()
    return guest
