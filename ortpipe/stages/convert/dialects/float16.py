"""float16 and bfloat16 as float32: CPUs have few kernels for 16-bit floats, and small updates vanish in them."""

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core.inference import infer

FLOATS16 = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
KINDS = ("to", "dtype")  # attributes that name a type


def write_float32(model: ir.Model) -> bool:
    """Rewrite every float16 and bfloat16 as float32, inputs and outputs too, in place; return whether there was any."""
    changed = False
    for graph in model.graphs():
        outputs = [y for node in graph for y in node.outputs]
        for value in {*graph.inputs, *graph.outputs, *graph.initializers.values(), *outputs}:
            if value.dtype in FLOATS16:
                changed = True
                value.type = ir.TensorType(ir.DataType.FLOAT)
                if value.const_value is not None and value.is_initializer():
                    value.const_value = _as_float32(value.const_value)
        for node, attribute in [(n, a) for n in graph for a in n.attributes.values()]:
            if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in FLOATS16:
                node.attributes[attribute.name] = ir.AttrTensor(attribute.name, _as_float32(attribute.as_tensor()))
            elif attribute.name in KINDS and attribute.type == ir.AttributeType.INT and attribute.as_int() in FLOATS16:
                node.attributes[attribute.name] = ir.AttrInt64(attribute.name, ir.DataType.FLOAT.value)
    if changed:
        infer(model)
    return changed


def _as_float32(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)
