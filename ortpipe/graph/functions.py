"""ONNX's operators that are functions, written as their bodies."""

from collections.abc import Iterable

import onnx
import onnx_ir as ir
from onnx import inliner

from ortpipe.graph.check import inferred


def with_bodies(model: onnx.ModelProto, op_types: Iterable[str]) -> onnx.ModelProto:
    """Return the model with these operators as their bodies, which ONNX's attributes and opset decide, and shapes."""
    held = ((tensor.name, tensor.data_type, tensor.dims) for tensor in model.graph.initializer)
    model.graph.value_info.extend(onnx.helper.make_tensor_value_info(*t) for t in held)  # some bodies need types
    chosen = [("", op_type) for op_type in sorted(op_types)]
    return inferred(inliner.inline_selected_functions(model, chosen, inline_schema_functions=True))


def write_defaults(model: ir.Model) -> None:
    """Write out every function's default attributes: a body may refer to one by name."""
    opset = model.graph.opset_imports.get("", 1)
    for node in model.graph.all_nodes():
        if not node.domain and is_function(node):
            for name, attribute in onnx.defs.get_schema(node.op_type, opset, "").attributes.items():
                if name not in node.attributes and attribute.default_value.name:
                    node.attributes[name] = ir.from_proto(attribute.default_value)


def is_function(node: ir.Node) -> bool:
    """Say whether an operator of ONNX has a body."""
    schema = onnx.defs.get_schema(node.op_type, node.domain)
    return bool(schema.has_function or schema.has_context_dependent_function)
