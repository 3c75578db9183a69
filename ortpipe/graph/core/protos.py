"""Queries of ONNX's own messages, which need no onnx-ir: their graphs, large weights, and ortpipe's metadata."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import onnx

PREFIX = "ortpipe."  # of the keys of metadata that ortpipe writes into models
LARGE_WEIGHT = 2**12  # entries from which on a weight is large
TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)
HEAVY = 2**20  # bytes of weights, from which on checks see the model without them
LARGE_MODEL = 2**31 - 2**20  # protobuf's limit is 2 GiB; above this, weights go to a file beside the model
Weights = Mapping[str, np.ndarray]


def graphs(body: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """Yield a graph, or a function, and the graphs inside it at any depth."""
    yield body
    for attribute in (a for node in body.node for a in node.attribute):
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from graphs(inner)


def all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return a graph's nodes and those of its subgraphs."""
    return [node for inner in graphs(graph) for node in inner.node]


def is_quantized(model: onnx.ModelProto) -> bool:
    """Return whether a model has QuantizeLinear nodes."""
    return any(node.op_type == "QuantizeLinear" and not node.domain for node in model.graph.node)


def without_metadata(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without ortpipe's facts, which are outdated; other metadata stay."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.metadata_props[:]
    bare.metadata_props.extend(p for p in model.metadata_props if not p.key.startswith(PREFIX))
    return bare


def is_large_weight(dtype: int, size: int) -> bool:
    """Return whether a tensor of an ONNX type and a number of entries is a large weight."""
    return dtype in TYPES and size >= LARGE_WEIGHT


def sealed(array: np.ndarray) -> np.ndarray:
    """Return a read-only array that owns its memory: a copy, unless the array is one already."""
    flags = array.flags
    base: object = array.base
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if isinstance(base, bytes) and flags.c_contiguous and flags.aligned:
        return array
    if flags.writeable or not flags.owndata or not flags.c_contiguous or not flags.aligned:
        array = np.array(array, order="C")
        array.flags.writeable = False
    return array


def weigh(model: onnx.ModelProto) -> int:
    """Return the size of the initializers in bytes, by their dimensions; inner graphs are included."""
    tensors = (tensor for graph in graphs(model.graph) for tensor in graph.initializer)
    return sum(math.prod(t.dims) * onnx.helper.tensor_dtype_to_np_dtype(t.data_type).itemsize for t in tensors)


def is_heavy(model: onnx.ModelProto) -> bool:
    """Return whether a model is checked without its weights."""
    return weigh(model) > min(HEAVY, LARGE_MODEL)


def is_large(model: onnx.ModelProto) -> bool:
    """Return whether a model needs files beside it; protobuf cannot measure one over 2 GiB, so weights are first."""
    return weigh(model) > LARGE_MODEL or model.ByteSize() > LARGE_MODEL
