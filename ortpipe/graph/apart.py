"""A model and its large weights apart: what is checked, rewritten and parsed then costs by its nodes alone.

Such a model has large initializers with names, types and dimensions, and no values: those are arrays beside it.
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

MANY = 2**12  # entries of a weight that is large
PIECE = 2**20  # bytes that are compared at once
TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)
PAGE = 2**12  # bytes; where weights begin in a file, runtimes map them without a copy
GRAPH, INITIALIZER, RAW = 7, 5, 9  # numbers of fields in onnx.proto
Weights = Mapping[str, np.ndarray]


def is_large_weight(tensor: onnx.TensorProto) -> bool:
    """Say whether a tensor is one of those that stand apart."""
    inside = tensor.HasField("raw_data") or tensor.float_data or tensor.double_data or tensor.int32_data
    if not inside or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return False
    return tensor.data_type in TYPES and math.prod(tensor.dims) >= MANY


def take_apart(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a copy of a model without the values of its large weights, and these, sealed; itself if it has none."""
    if not any(map(is_large_weight, model.graph.initializer)):
        return model, {}
    own, weights = onnx.ModelProto(), dict[str, np.ndarray]()
    copy_fields(model, own, "graph")
    copy_fields(model.graph, own.graph, "initializer")
    for tensor in model.graph.initializer:
        if is_large_weight(tensor):
            weights[tensor.name] = sealed(onnx.numpy_helper.to_array(tensor))
            own.graph.initializer.append(stub(tensor))
        else:
            own.graph.initializer.append(tensor)
    return own, weights


def split(content: bytes | mmap) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return the model that some bytes hold without the values of its large weights, and these, read from there."""
    found = [field for field in fields(content) if field.number == GRAPH and field.kind == BYTES]
    tensors = [field for graph in found for field in fields(content, graph) if field.number == INITIALIZER]
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
    """Return a model whose large initializers are inputs, the last ones: what is checked need not hold them.

    Those of inner graphs are too, which read them from around.
    """
    own = onnx.ModelProto()
    large = dict[str, onnx.TensorProto]()
    copy_fields(model, own, "graph")
    _copy_graph(model.graph, own.graph, large)
    known = {i.name for i in model.graph.input}
    for name in (name for name in large if name not in known):
        own.graph.input.append(onnx.helper.make_tensor_value_info(name, large[name].data_type, large[name].dims))
    return own


def _copy_graph(source: onnx.GraphProto, target: onnx.GraphProto, large: dict[str, onnx.TensorProto]) -> None:
    """Copy a graph without its large initializers, which are collected."""
    copy_fields(source, target, "initializer", "node")
    for tensor in source.initializer:
        if math.prod(tensor.dims) < MANY or tensor.name in large:  # of two branches, perhaps
            target.initializer.append(tensor)
        else:
            large[tensor.name] = tensor
    for node in source.node:
        copy = target.node.add()
        copy_fields(node, copy, "attribute")
        for attribute in node.attribute:
            own = copy.attribute.add()
            copy_fields(attribute, own, "g")
            if attribute.HasField("g"):
                _copy_graph(attribute.g, own.g, large)


def sealed(array: np.ndarray) -> np.ndarray:
    """Return an array that nobody can change: itself, where that holds already, as of another artifact's."""
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
    """Return the bytes that a model with its weights has, deterministically serialised, without a copy of these."""
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
            whole = tensor.SerializeToString(deterministic=True)
            tensors.append(_tag(INITIALIZER) + varint(len(whole)) + whole)
    inner = [_fields(graph, range(INITIALIZER)), *tensors, _fields(graph, range(INITIALIZER + 1, 1000))]
    number = model.DESCRIPTOR.fields_by_name["graph"].number
    size = sum(map(len, inner))
    front = _fields(model, range(number)) + _tag(number) + varint(size)
    return [front, *inner, _fields(model, range(number + 1, 1000))]


def attach(model: ir.Model, weights: Weights) -> None:
    """Give the initializers that stand apart their values, in place."""
    for graph in (model.graph, *(inner for node in model.graph.all_nodes() for inner in subgraphs(node))):
        for name in weights.keys() & graph.initializers.keys():
            graph.initializers[name].const_value = ir.Tensor(weights[name], name=name)


def put_together(model: onnx.ModelProto, weights: Weights) -> onnx.ModelProto:
    """Return a model with its weights inside, in a copy."""
    own = onnx.ModelProto()
    own.CopyFrom(model)
    for tensor in _stubs(own, weights):
        tensor.raw_data = bytes(bytes_of(weights[tensor.name]))
    return own


def write_beside(model: onnx.ModelProto, weights: Weights, path: Path) -> None:
    """Write a model, and its weights into one file of external data beside it."""
    own = written_beside(model, weights, path.with_name(f"{path.name}.data"))
    path.write_bytes(own.SerializeToString(deterministic=True))


def written_beside(model: onnx.ModelProto, weights: Weights, data: Path) -> onnx.ModelProto:
    """Write a model's weights into a file of external data; return a copy of the model that points there."""
    own, offsets = onnx.ModelProto(), dict[str, int]()
    own.CopyFrom(model)
    with data.open("wb") as file:
        for tensor in _stubs(own, weights):
            array = weights[tensor.name]
            if tensor.name not in offsets:  # of two branches, perhaps
                file.seek(-file.tell() % PAGE, os.SEEK_CUR)
                offsets[tensor.name] = file.tell()
                file.write(bytes_of(array))
            tensor.data_location = onnx.TensorProto.EXTERNAL
            entries = {"location": data.name, "offset": offsets[tensor.name], "length": array.nbytes}
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))
    return own


def _stubs(model: onnx.ModelProto, weights: Weights) -> list[onnx.TensorProto]:
    return [tensor for graph in graphs(model.graph) for tensor in graph.initializer if tensor.name in weights]


def bytes_of(array: np.ndarray) -> memoryview:
    """Return an array's numbers as files have them: little-endian, without a copy where they are so in memory."""
    little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    return little.reshape(-1).view(np.uint8).data


def same_bytes(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two arrays of one type and shape are the same bytes; a large one takes little to compare."""
    if one is other:
        return True
    a, b = bytes_of(one), bytes_of(other)
    return len(a) == len(b) and all(bytes(a[i : i + PIECE]) == bytes(b[i : i + PIECE]) for i in range(0, len(a), PIECE))


def _tag(number: int) -> bytes:
    return varint(number << 3 | BYTES)


def _fields(message: Message, numbers: Collection[int]) -> bytes:
    """Return the bytes of some of a message's fields."""
    part = type(message)()
    copy_fields(message, part, *(f.name for f in message.DESCRIPTOR.fields if f.number not in numbers))
    return part.SerializePartialToString(deterministic=True)


def copy_fields(source: Message, target: Message, *without: str) -> None:
    """Copy the fields of a message but for some."""
    for field, value in source.ListFields():
        if field.name in without:
            continue
        if isinstance(value, int | float | str | bytes):
            setattr(target, field.name, value)
        else:
            getattr(target, field.name).MergeFrom(value)
