"""Store a bundle's numbers in float16: half the bytes; arithmetic stays in float32."""

import dataclasses

import numpy as np
import onnx
from onnx.numpy_helper import from_array, to_array

from ortpipe.bundle.graphs import BundleGraphs
from ortpipe.errors import TrainError
from ortpipe.graph.core.protos import graphs as all_graphs

LEAST = 64  # numbers from which on half the bytes of a constant outweigh its Cast
LARGEST = float(np.finfo(np.float16).max)


def halved(graphs: BundleGraphs) -> BundleGraphs:
    """Return graphs whose state and large constants are stored in float16, x ↦ float32(float16(x)).

    A stored number differs from x by at most 2⁻¹¹·|x|, and below 6.1e-5 by at most 3e-8. Runtimes cast the constants
    once, when they load a graph.

    Raises:
        TrainError: a number is larger than 65,504, the largest of float16.
    """
    models = {name: onnx.ModelProto.FromString(model.SerializeToString()) for name, model in graphs.models.items()}
    for model in models.values():
        for graph in all_graphs(model.graph):
            _halve(graph)
    state = {
        name: _rounded(name, array) if array.dtype == np.float32 else array for name, array in graphs.state.items()
    }
    return dataclasses.replace(graphs, models=models, state=state)


def _halve(graph: onnx.GraphProto) -> None:
    """Replace the large float32 initializers of a graph, each by one in float16 and a Cast to the old name."""
    casts = []
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and np.prod(tensor.dims) >= LEAST:
            name, stored = tensor.name, f"{tensor.name}/float16"
            tensor.CopyFrom(from_array(_rounded(name, to_array(tensor)), stored))
            casts.append(onnx.helper.make_node("Cast", [stored], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def _rounded(name: str, array: np.ndarray) -> np.ndarray:
    largest = float(np.abs(array).max(initial=0))
    if not largest <= LARGEST:
        rule, fix = f"Numbers stored in float16 must be at most {LARGEST:,.0f}.", "Leave out float16 (--float16)."
        raise TrainError(rule, got=f"{largest:.3g} in {name}", fix=fix)
    return array.astype(np.float16)
