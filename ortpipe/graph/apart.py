"""Keep a model and its large weights apart, so that checks, rewrites and parsing cost by its nodes alone.

Large initializers of such a model have names, types and dimensions, but no values; these are in separate arrays.
"""

import math
import os
from collections.abc import Collection, Mapping
from mmap import mmap
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import Message

from ortpipe.graph.query import graphs, subgraphs
from ortpipe.graph.wire import BYTES, Edit, Field, edited, fields, varint

MANY = 2**12  # entries from which on a weight is large
PIECE = 2**20  # bytes per comparison
TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)
PAGE = 2**12  # bytes; runtimes map weights that are aligned to it without a copy
GRAPH, INITIALIZER, RAW = 7, 5, 9  # numbers of fields in onnx.proto
Weights = Mapping[str, np.ndarray]


def is_large_weight(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor is a large weight with its values inside the model."""
    inside = tensor.HasField("raw_data") or tensor.float_data or tensor.double_data or tensor.int32_data
    if not inside or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return False
    return tensor.data_type in TYPES and math.prod(tensor.dims) >= MANY


def take_apart(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a copy of a model without the values of its large weights, and these, read-only; itself if it has none."""
    if not any(map(is_large_weight, model.graph.initializer)):
        return model, {}
    light, weights = onnx.ModelProto(), dict[str, np.ndarray]()
    copy_fields(model, light, "graph")
    copy_fields(model.graph, light.graph, "initializer")
    for tensor in model.graph.initializer:
        if is_large_weight(tensor):
            weights[tensor.name] = sealed(onnx.numpy_helper.to_array(tensor))
            light.graph.initializer.append(stub(tensor))
        else:
            light.graph.initializer.append(tensor)
    return light, weights


def split(content: bytes | mmap) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Parse a model's bytes; return the model without the values of its large weights, and these."""
    graphs_ = [field for field in fields(content) if field.number == GRAPH and field.kind == BYTES]
    tensors = [field for graph in graphs_ for field in fields(content, graph) if field.number == INITIALIZER]
    places = dict[int, Field]()
    for place, tensor in enumerate(tensors):
        values = [field for field in fields(content, tensor) if field.number == RAW and field.kind == BYTES]
        if len(values) == 1 and values[0].end - values[0].begin >= MANY:
            places[place] = values[0]
    model = onnx.ModelProto.FromString(edited(content, [Edit(field, b"") for field in places.values()]))
    weights = dict[str, np.ndarray]()
    for place, field in places.items():
        tensor, raw = model.graph.initializer[place], content[field.begin : field.end]
        if is_large_weight(tensor) and tensor.name not in weights:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).newbyteorder("<")
            weights[tensor.name] = sealed(np.frombuffer(raw, dtype).reshape(tensor.dims))
            tensor.CopyFrom(stub(tensor))
        else:
            tensor.raw_data = raw
    return model, weights


def stub(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return a tensor without its values."""
    return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


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
        if math.prod(tensor.dims) < MANY or tensor.name in large:  # two branches may share a name
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


def pieces(model: onnx.ModelProto, weights: Weights) -> list[bytes | memoryview]:
    """Return the deterministically serialised bytes of a model with its weights, in pieces, without copying these."""
    inner_names = {t.name for t in _stubs(model, weights)} - {t.name for t in model.graph.initializer}
    if inner_names:
        model = put_together(model, {name: weights[name] for name in inner_names})
    graph, tensors = model.graph, list[bytes | memoryview]()
    for tensor in graph.initializer:
        if tensor.name in weights:
            content = bytes_of(weights[tensor.name])
            head = stub(tensor).SerializeToString(deterministic=True) + _tag(RAW) + varint(len(content))
            tensors += [_tag(INITIALIZER) + varint(len(head) + len(content)) + head, content]
        else:
            serialized = tensor.SerializeToString(deterministic=True)
            tensors.append(_tag(INITIALIZER) + varint(len(serialized)) + serialized)
    inner = [_fields(graph, range(INITIALIZER)), *tensors, _fields(graph, range(INITIALIZER + 1, 1000))]
    number = model.DESCRIPTOR.fields_by_name["graph"].number
    size = sum(map(len, inner))
    front = _fields(model, range(number)) + _tag(number) + varint(size)
    return [front, *inner, _fields(model, range(number + 1, 1000))]


def attach(model: ir.Model, weights: Weights) -> None:
    """Set the initializers whose values are in `weights`, in place."""
    for graph in (model.graph, *(inner for node in model.graph.all_nodes() for inner in subgraphs(node))):
        for name in weights.keys() & graph.initializers.keys():
            graph.initializers[name].const_value = ir.Tensor(weights[name], name=name)


def put_together(model: onnx.ModelProto, weights: Weights) -> onnx.ModelProto:
    """Return a copy of a model with its weights inside."""
    full = onnx.ModelProto()
    full.CopyFrom(model)
    for tensor in _stubs(full, weights):
        tensor.raw_data = bytes(bytes_of(weights[tensor.name]))
    return full


def write_beside(model: onnx.ModelProto, weights: Weights, path: Path) -> None:
    """Write a model to `path`, and its weights to one file of external data beside it."""
    referring = written_beside(model, weights, path.with_name(f"{path.name}.data"))
    path.write_bytes(referring.SerializeToString(deterministic=True))


def written_beside(model: onnx.ModelProto, weights: Weights, data: Path) -> onnx.ModelProto:
    """Write a model's weights to a file of external data; return a copy of the model that refers to it."""
    referring, offsets = onnx.ModelProto(), dict[str, int]()
    referring.CopyFrom(model)
    with data.open("wb") as file:
        for tensor in _stubs(referring, weights):
            array = weights[tensor.name]
            if tensor.name not in offsets:  # two branches may share a name
                file.seek(-file.tell() % PAGE, os.SEEK_CUR)
                offsets[tensor.name] = file.tell()
                file.write(bytes_of(array))
            tensor.data_location = onnx.TensorProto.EXTERNAL
            entries = {"location": data.name, "offset": offsets[tensor.name], "length": array.nbytes}
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))
    return referring


def _stubs(model: onnx.ModelProto, weights: Weights) -> list[onnx.TensorProto]:
    return [tensor for graph in graphs(model.graph) for tensor in graph.initializer if tensor.name in weights]


def bytes_of(array: np.ndarray) -> memoryview:
    """Return an array's little-endian bytes, without a copy where memory has that layout."""
    little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    return little.reshape(-1).view(np.uint8).data


def same_bytes(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether two arrays of the same type and shape have equal bytes, comparing piece by piece."""
    if first is second:
        return True
    a, b = bytes_of(first), bytes_of(second)
    return len(a) == len(b) and all(bytes(a[i : i + PIECE]) == bytes(b[i : i + PIECE]) for i in range(0, len(a), PIECE))


def _tag(number: int) -> bytes:
    return varint(number << 3 | BYTES)


def _fields(message: Message, numbers: Collection[int]) -> bytes:
    """Return the serialised bytes of the fields with these numbers."""
    part = type(message)()
    copy_fields(message, part, *(f.name for f in message.DESCRIPTOR.fields if f.number not in numbers))
    return part.SerializePartialToString(deterministic=True)


def copy_fields(source: Message, target: Message, *without: str) -> None:
    """Copy the fields of a message, except those named in `without`."""
    for field, value in source.ListFields():
        if field.name in without:
            continue
        if isinstance(value, int | float | str | bytes):
            setattr(target, field.name, value)
        else:
            getattr(target, field.name).MergeFrom(value)
