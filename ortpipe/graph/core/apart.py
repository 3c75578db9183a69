"""Keep a model and its large weights apart, so that checks, rewrites and parsing cost by its nodes alone.

Large initializers of such a model have names, types and dimensions, but no values; these are in separate arrays.
"""

import math
from collections.abc import Mapping

import numpy as np
import onnx
from google.protobuf.message import Message

from ortpipe.graph.core.query import graphs

LARGE_WEIGHT = 2**12  # entries from which on a weight is large
TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)
HEAVY = 2**20  # bytes of weights, from which on checks see the model without them
LARGE_MODEL = 2**31 - 2**20  # protobuf's limit is 2 GiB; above this, weights go to a file beside the model
Weights = Mapping[str, np.ndarray]


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model with its large initializers as inputs, the last ones, so that checks need no values.

    Those of inner graphs become inputs of the main graph.
    """
    light = onnx.ModelProto()
    large = dict[str, onnx.TensorProto]()
    copy_fields(model, light, "graph")
    _copy_graph(model.graph, light.graph, large)
    declared = {i.name for i in model.graph.input}
    for name in (name for name in large if name not in declared):
        light.graph.input.append(onnx.helper.make_tensor_value_info(name, large[name].data_type, large[name].dims))
    return light


def _copy_graph(source: onnx.GraphProto, target: onnx.GraphProto, large: dict[str, onnx.TensorProto]) -> None:
    """Copy a graph without its large initializers, which are collected in `large`."""
    copy_fields(source, target, "initializer", "node")
    for tensor in source.initializer:
        if math.prod(tensor.dims) < LARGE_WEIGHT or tensor.name in large:  # two branches may share a name
            target.initializer.append(tensor)
        else:
            large[tensor.name] = tensor
    for node in source.node:
        copy = target.node.add()
        copy_fields(node, copy, "attribute")
        for attribute in node.attribute:
            attribute_copy = copy.attribute.add()
            copy_fields(attribute, attribute_copy, "g")
            if attribute.HasField("g"):
                _copy_graph(attribute.g, attribute_copy.g, large)


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


def copy_fields(source: Message, target: Message, *without: str) -> None:
    """Copy the fields of a message, except those named in `without`."""
    for field, value in source.ListFields():
        if field.name in without:
            continue
        if isinstance(value, int | float | str | bytes):
            setattr(target, field.name, value)
        else:
            getattr(target, field.name).MergeFrom(value)


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
