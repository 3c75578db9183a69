"""A model in float64: for differences that rounding does not hide."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper

TO = {"Cast": "to", "RandomNormal": "dtype", "RandomUniform": "dtype", "EyeLike": "dtype"}
SMALLER = (TensorProto.FLOAT, TensorProto.FLOAT16)


def as_double(model: ModelProto) -> ModelProto:
    """Return the model with float64 wherever it has float32 or float16."""
    double = ModelProto()
    double.CopyFrom(model)
    _graph(double.graph)
    for function in double.functions:
        for node in function.node:
            _node(node)
    return double


def _graph(graph: GraphProto) -> None:
    for tensor in graph.initializer:
        _tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in SMALLER:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        _node(node)


def _node(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            _tensor(attribute.t)
        elif attribute.type == AttributeProto.GRAPH:
            _graph(attribute.g)
        elif attribute.name == TO.get(node.op_type) and attribute.i in SMALLER:
            attribute.i = TensorProto.DOUBLE
    names = {a.name: a for a in node.attribute}
    if node.op_type == "ConstantOfShape" and "value" not in names:
        zero = numpy_helper.from_array(np.zeros(1, np.float64))
        node.attribute.append(onnx.helper.make_attribute("value", zero))
    if node.op_type == "Constant" and (single := names.get("value_float") or names.get("value_floats")):
        numbers = single.f if single.name == "value_float" else list(single.floats)
        node.attribute.remove(single)
        node.attribute.append(
            onnx.helper.make_attribute("value", numpy_helper.from_array(np.array(numbers, np.float64)))
        )


def _tensor(tensor: TensorProto) -> None:
    if tensor.data_type in SMALLER:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
