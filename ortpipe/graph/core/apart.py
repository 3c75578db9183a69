"""Take large weights out of models, put them back, write them to files beside, and compare."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from ortpipe.doors import later
from ortpipe.graph.core.protos import LARGE_WEIGHT, Weights, graphs, is_large_weight, sealed

if TYPE_CHECKING:  # `attach` alone needs onnx-ir
    import onnx_ir as ir
    from onnx_ir import Tensor

    from ortpipe.graph.core.query import subgraphs
else:
    later(__name__)

PAGE = 2**12  # bytes; runtimes map weights that are aligned to it without a copy


def take_apart(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a copy of a model without the values of its large weights, and these; the model itself if it has none."""
    if not any(map(_holds_large_weight, model.graph.initializer)):
        return model, {}
    light = onnx.ModelProto()
    light.CopyFrom(model)
    return light, take_out(light)


def take_out(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Remove the values of a model's large weights, in place, and return them, read-only."""
    large = [tensor for tensor in model.graph.initializer if _holds_large_weight(tensor)]
    weights = {}
    for tensor in large:
        weights[tensor.name] = sealed(onnx.numpy_helper.to_array(tensor))
        tensor.CopyFrom(stub(tensor))
    return weights


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model with its large initializers as inputs, the last ones, so that checks need no values.

    Those of inner graphs become inputs of the main graph.
    """
    light, large = onnx.ModelProto(), dict[str, onnx.ValueInfoProto]()
    light.CopyFrom(model)
    for graph in graphs(light.graph):
        small = []
        for tensor in graph.initializer:
            if math.prod(tensor.dims) < LARGE_WEIGHT or tensor.name in large:  # two branches may share a name
                small.append(tensor)
            else:
                info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
                large[tensor.name] = info
        del graph.initializer[:]
        graph.initializer.extend(small)
    declared = {i.name for i in model.graph.input}
    light.graph.input.extend(info for name, info in large.items() if name not in declared)
    return light


def with_weights(light: onnx.ModelProto, model: onnx.ModelProto) -> onnx.ModelProto:
    """Put the initializers of `model` back into `light`, which `without_weights` made of it."""
    inputs = {i.name for i in model.graph.input}
    declared = [i for i in light.graph.input if i.name in inputs]
    del light.graph.input[:]
    light.graph.input.extend(declared)
    for graph, heavy in zip(graphs(light.graph), graphs(model.graph), strict=True):
        del graph.initializer[:]
        graph.initializer.extend(heavy.initializer)
    return light


def serialized(model: onnx.ModelProto, weights: Weights | None = None) -> bytes:
    """Return the deterministically serialized bytes of a model with its weights inside."""
    whole = put_together(model, weights) if weights else model
    return whole.SerializeToString(deterministic=True)


def attach(model: ir.Model, weights: Weights) -> None:
    """Set the initializers whose values are in `weights`, in place."""
    for graph in (model.graph, *(inner for node in model.graph.all_nodes() for inner in subgraphs(node))):
        for name in weights.keys() & graph.initializers.keys():
            graph.initializers[name].const_value = Tensor(weights[name], name=name)


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
    return _as_bytes(array).data


def _as_bytes(array: np.ndarray) -> np.ndarray:
    little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    return little.reshape(-1).view(np.uint8)


def same_bytes(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether two arrays of the same type and shape have equal bytes."""
    return first is second or bool(np.array_equal(_as_bytes(first), _as_bytes(second)))


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


def _holds_large_weight(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor is a large weight with its values inside the model."""
    inside = tensor.HasField("raw_data") or tensor.float_data or tensor.double_data or tensor.int32_data
    if not inside or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return False
    return is_large_weight(tensor.data_type, math.prod(tensor.dims))


def stub(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return a tensor without its values."""
    return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
