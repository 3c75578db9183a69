"""A graph as text that a person reads."""

from __future__ import annotations

import onnx
import onnx_ir as ir


def to_text(model: onnx.ModelProto) -> str:
    """Return a model in ONNX's text form, with large tensors cut to their type and shape."""
    graph = model.graph
    small = onnx.ModelProto()
    small.CopyFrom(model)
    del small.graph.initializer[:]
    small.graph.initializer.extend(t for t in graph.initializer if _size(t) <= 8)
    lines = [
        f"# {t.name}: {ir.DataType(t.data_type).name.lower()}{list(t.dims)}" for t in graph.initializer if _size(t) > 8
    ]
    return "\n".join([*lines, onnx.printer.to_text(small)]) + "\n"


def _size(tensor: onnx.TensorProto) -> int:
    size = 1
    for dim in tensor.dims:
        size *= dim
    return size
