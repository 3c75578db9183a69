"""ONNX's operators that are functions, written as their bodies."""

from collections.abc import Container, Iterable

import onnx
import onnx_ir as ir
from onnx import inliner

from ortpipe.errors import ModelError, nearest
from ortpipe.graph.check import inferred


def with_bodies(model: onnx.ModelProto, op_types: Iterable[str]) -> onnx.ModelProto:
    """Return the model with these operators as their bodies, which ONNX's attributes and opset decide, and shapes."""
    held = ((tensor.name, tensor.data_type, tensor.dims) for tensor in model.graph.initializer)
    model.graph.value_info.extend(onnx.helper.make_tensor_value_info(*t) for t in held)  # some bodies need types
    omitted = onnx.helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None)
    model.graph.value_info.append(omitted)  # the inliner asks for the type of inputs that are left out, too
    chosen = [("", op_type) for op_type in sorted(op_types)]
    model = inliner.inline_selected_functions(model, chosen, inline_schema_functions=True)
    if omitted in model.graph.value_info:
        model.graph.value_info.remove(omitted)
    return inferred(model)


def write_defaults(model: ir.Model, op_types: Container[str] | None = None) -> None:
    """Write out the default attributes of functions, all or some of them: a body may refer to one by name."""
    opset = model.graph.opset_imports.get("", 1)
    for node in model.graph.all_nodes():
        chosen = op_types is None or node.op_type in op_types
        if chosen and not node.domain and is_function(node):
            for name, attribute in onnx.defs.get_schema(node.op_type, opset, "").attributes.items():
                if name not in node.attributes and attribute.default_value.name:
                    node.attributes[name] = ir.from_proto(attribute.default_value)


def is_function(node: ir.Node) -> bool:
    """Say whether an operator of ONNX has a body."""
    schema = onnx.defs.get_schema(node.op_type, node.domain)
    return bool(schema.has_function or schema.has_context_dependent_function)


def called_alone(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return the model that calls one of a model's local functions, `Name` or `domain:Name`, and nothing else.

    Its inputs have the types of the first call in the graph, whose attributes it has too: a function says of neither.

    Raises:
        ModelError: there is no such function, several have that name, or nobody calls it.
    """
    known = {f"{f.domain}:{f.name}": f for f in model.functions}
    found = [f for key, f in known.items() if name in (key, f.name)]
    if len(found) != 1:
        fix = nearest(name, known) if known else "Leave it out: the model has no local functions."
        raise ModelError("function names one of the model's local functions.", got=repr(name), fix=fix)
    [function] = found
    key = (function.domain, function.name, function.overload)
    whole = inferred(model)
    calls = [node for node in whole.graph.node if (node.domain, node.op_type, node.overload) == key]
    if not calls:
        got = f"{name!r}, which the graph's nodes do not call"
        raise ModelError(
            "A function has types where it is called.", got=got, fix="Name one that they call, or add a call."
        )
    graph = whole.graph
    types = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
    types |= {t.name: onnx.helper.make_tensor_type_proto(t.data_type, t.dims) for t in graph.initializer}
    call = onnx.NodeProto()
    call.CopyFrom(calls[0])
    own = onnx.ModelProto()
    own.CopyFrom(whole)
    own.ClearField("graph")
    own.graph.name = function.name
    for names, formal, given in (
        (call.input, function.input, own.graph.input),
        (call.output, function.output, own.graph.output),
    ):
        given.extend(
            onnx.helper.make_value_info(inside, types.get(outside, onnx.TypeProto()))
            for inside, outside in zip(formal, names, strict=False)
            if outside
        )
        names[:] = [inside if outside else "" for inside, outside in zip(formal, names, strict=False)]
    own.graph.node.append(call)
    return own
