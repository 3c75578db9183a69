"""Parse and serialize models apart from their large weights, compare them, and put the weights back."""

import math
import os
from collections.abc import Collection, Iterator
from mmap import mmap
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import Message

from ortpipe.graph.core.apart import LARGE_WEIGHT, TYPES, Weights, copy_fields, sealed
from ortpipe.graph.core.query import graphs, subgraphs

PIECE = 2**20  # bytes per comparison
PAGE = 2**12  # bytes; runtimes map weights that are aligned to it without a copy
INITIALIZER = 5  # its number in onnx.proto
VARINT, BYTES, FIXED = 0, 2, {1: 8, 5: 4}  # protobuf's wire types; those of fixed size with their bytes
GRAPH_TAG, INITIALIZER_TAG, RAW_TAG = (number << 3 | BYTES for number in (7, INITIALIZER, 9))


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
    model, weights = onnx.ModelProto(), dict[str, np.ndarray]()
    for tag, begin, value, end in _walk(content, 0, len(content)):
        if tag != GRAPH_TAG:
            model.MergeFromString(content[begin:end])
            continue
        for inner_tag, inner_begin, inner_value, inner_end in _walk(content, value, end):
            if inner_tag == INITIALIZER_TAG and inner_end - inner_value >= LARGE_WEIGHT:
                _parse_tensor(content, inner_value, inner_end, model.graph.initializer.add(), weights)
            else:
                model.graph.MergeFromString(content[inner_begin:inner_end])
    return model, weights


def _parse_tensor(
    content: bytes | mmap, place: int, end: int, tensor: onnx.TensorProto, weights: dict[str, np.ndarray]
) -> None:
    """Parse a tensor; the values of a large weight go into `weights`."""
    raw = None
    for tag, begin, value, stop in _walk(content, place, end):
        if tag == RAW_TAG:
            raw = content[value:stop]
        else:
            tensor.MergeFromString(content[begin:stop])
    if raw is None:
        return
    tensor.raw_data = b""
    if is_large_weight(tensor) and tensor.name not in weights:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).newbyteorder("<")
        weights[tensor.name] = sealed(np.frombuffer(raw, dtype).reshape(tensor.dims))
        tensor.CopyFrom(stub(tensor))
    else:
        tensor.raw_data = raw


def _walk(content: bytes | mmap, place: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield each field's tag in a protobuf message, and where the field begins, its value begins, and it ends."""
    while place < end:
        tag, value = _number(content, place, end)
        kind = tag & 7
        if kind == BYTES:
            size, value = _number(content, value, end)
            stop = value + size
        else:
            stop = _number(content, value, end)[1] if kind == VARINT else value + FIXED.get(kind, end)
        if stop > end:
            raise ValueError(f"no protobuf message at byte {place}")
        yield tag, place, value, stop
        place = stop


def _number(content: bytes | mmap, place: int, end: int) -> tuple[int, int]:
    """Return the varint that begins at `place`, and its end."""
    number = 0
    for count, byte in enumerate(content[place : min(end, place + 10)]):
        number |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return number, place + count + 1
    raise ValueError(f"no protobuf message at byte {place}")


def pieces(model: onnx.ModelProto, weights: Weights) -> list[bytes | memoryview]:
    """Return the deterministically serialised bytes of a model with its weights, in pieces, without copying these."""
    inner_names = {t.name for t in _stubs(model, weights)} - {t.name for t in model.graph.initializer}
    if inner_names:
        model = put_together(model, {name: weights[name] for name in inner_names})
    graph, tensors = model.graph, list[bytes | memoryview]()
    for tensor in graph.initializer:
        if tensor.name in weights:
            content = bytes_of(weights[tensor.name])
            head = stub(tensor).SerializeToString(deterministic=True) + _varint(RAW_TAG, len(content))
            tensors += [_varint(INITIALIZER_TAG, len(head) + len(content)) + head, content]
        else:
            serialized = tensor.SerializeToString(deterministic=True)
            tensors.append(_varint(INITIALIZER_TAG, len(serialized)) + serialized)
    inner = [_fields(graph, range(INITIALIZER)), *tensors, _fields(graph, range(INITIALIZER + 1, 1000))]
    number = model.DESCRIPTOR.fields_by_name["graph"].number
    front = _fields(model, range(number)) + _varint(GRAPH_TAG, sum(map(len, inner)))
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


def same_graph(first: tuple[onnx.ModelProto, Weights], second: tuple[onnx.ModelProto, Weights]) -> bool:
    """Return whether two models with their weights compute the same by the same nodes; declared shapes may differ."""
    a, b = first[0], second[0]
    tensors, others = ({t.name: t for t in model.graph.initializer} for model in (a, b))
    nodes, twins = (
        [
            (n.domain.removeprefix("ai.onnx"), n.op_type, [*n.input], [*n.output], [*n.attribute])
            for n in model.graph.node
        ]
        for model in (a, b)
    )
    if nodes != twins or tensors.keys() != others.keys() or [*a.opset_import] != [*b.opset_import]:
        return False

    def array(name: str, tensor: onnx.TensorProto, weights: Weights) -> np.ndarray:
        return weights[name] if name in weights else onnx.numpy_helper.to_array(tensor)

    pairs = [(array(name, t, first[1]), array(name, others[name], second[1])) for name, t in tensors.items()]
    return all(x is y or (x.dtype == y.dtype and np.array_equal(x, y)) for x, y in pairs)


def _varint(*numbers: int) -> bytes:
    """Return numbers as protobuf's varints.

    >>> _varint(300, 1).hex()
    'ac0201'
    """
    parts = []
    for number in numbers:
        while number > 0x7F:
            parts.append(number & 0x7F | 0x80)
            number >>= 7
        parts.append(number)
    return bytes(parts)


def _fields(message: Message, numbers: Collection[int]) -> bytes:
    """Return the serialised bytes of the fields with these numbers."""
    part = type(message)()
    copy_fields(message, part, *(f.name for f in message.DESCRIPTOR.fields if f.number not in numbers))
    return part.SerializePartialToString(deterministic=True)


def is_large_weight(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor is a large weight with its values inside the model."""
    inside = tensor.HasField("raw_data") or tensor.float_data or tensor.double_data or tensor.int32_data
    if not inside or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return False
    return tensor.data_type in TYPES and math.prod(tensor.dims) >= LARGE_WEIGHT


def stub(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return a tensor without its values."""
    return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
