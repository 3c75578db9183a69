"""The entry point of `ortpipe.fast`: the passes for each engine, in order."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import onnx

from ortpipe.artifact import Arrays
from ortpipe.fast.batch_statistics import read_batch_statistics
from ortpipe.fast.blocked import block_channels
from ortpipe.fast.hoist import hoist, sink
from ortpipe.fast.order import sort_by_readiness
from ortpipe.fast.passes import (
    carry_biases_as_rows,
    join_products,
    share_exponentials,
    start_at_rate,
)
from ortpipe.fast.thresholds import THRESHOLDS
from ortpipe.graph.core.query import graphs
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.train.epoch_graph import EpochGraph
from ortpipe.stages.train.speed import Speed

Pass = Callable[[EpochGraph], None]
# in order: later passes rewrite nodes that earlier passes created
PASSES: tuple[Pass, ...] = (
    read_batch_statistics,
    start_at_rate,
    join_products,
    hoist,
    carry_biases_as_rows,
    sink,
)
# XLA does these fusions itself: measured, its step is up to 11 % faster without them.
PASSES_OF_XLA: tuple[Pass, ...] = (share_exponentials,)


class Fast(Speed):
    """The hooks of training: stacks of small parameters, rewritten epochs and sorted nodes."""

    def stacks(self, arrays: Arrays) -> list[list[str]]:
        """Group small parameters of equal type and row size if there are many; otherwise leave each alone.

        onnxruntime 1.19.2 searches all inputs of a graph for each operand of each node.
        """
        alike, high = defaultdict[object, list[str]](list), THRESHOLDS.stack_height
        for name, array in arrays.items():
            stackable = len(arrays) >= THRESHOLDS.stacked_parameters and array.size <= THRESHOLDS.stacked_elements
            alike[(array.dtype, array.shape[1:]) if stackable and array.ndim else name].append(name)
        return [names[start : start + high] for names in alike.values() for start in range(0, len(names), high)]

    def rewrite(self, epoch: EpochGraph, runtime: RuntimeConfig | None) -> None:
        """Run the passes over an epoch graph with a known batch size, in place."""
        for one in passes_for(runtime or RuntimeConfig()):
            one(epoch)

    def prepare(self, model: onnx.ModelProto) -> bool:
        """Sort the nodes of deep graphs; return whether the session should plan its memory (small values only)."""
        axes = ([d.dim_value for d in v.type.tensor_type.shape.dim] for g in graphs(model.graph) for v in g.value_info)
        size = 4 * sum(map(math.prod, axes))  # 0 if a size is unknown
        sort_by_readiness(model, size)
        return size < THRESHOLDS.planned_bytes


def passes_for(runtime: RuntimeConfig) -> Sequence[Pass]:
    """Return the passes for the engine and device that run an epoch."""
    if runtime.engine == "xla":
        return PASSES_OF_XLA
    return (*PASSES, block_channels) if runtime.provider == "cpu" else PASSES
