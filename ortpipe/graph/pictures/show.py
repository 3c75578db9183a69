"""A graph as readable text."""

import math

import onnx
import onnx_ir as ir


def to_text(model: onnx.ModelProto) -> str:
    """Return a model in ONNX's text form, with large tensors as type and shape."""
    graph = model.graph
    small = onnx.ModelProto()
    small.CopyFrom(model)
    del small.graph.initializer[:]
    small.graph.initializer.extend(t for t in graph.initializer if math.prod(t.dims) <= 8)
    lines = [f"# {t.name}: {type_of(t)}" for t in graph.initializer if math.prod(t.dims) > 8]
    try:
        text = onnx.printer.to_text(small)
    except (UnicodeDecodeError, RuntimeError, onnx.shape_inference.InferenceError) as error:
        text = f"# ONNX's text form cannot show this model: {error}"
    return "\n".join([*lines, text]) + "\n"


def type_of(value: onnx.TensorProto | onnx.ValueInfoProto | ir.Value) -> str:
    """Return type and shape as text; a dimension without size and name is ?.

    >>> type_of(onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, ["N", 3, None]))
    'float[N, 3, ?]'
    """
    if isinstance(value, onnx.TensorProto):
        return f"{ir.DataType(value.data_type).name.lower()}{list(value.dims)}"
    if isinstance(value, ir.Value):
        value = ir.to_proto(value)
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return str(kind).removesuffix("_type") if kind else "?"
    tensor = value.type.tensor_type
    name = ir.DataType(tensor.elem_type).name.lower()
    if not tensor.HasField("shape"):
        return f"{name}[…]"
    dims = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
    return f"{name}[{', '.join(dims)}]"
