"""Function operators and local functions: their bodies in place of the calls."""

from collections.abc import Container, Iterable

import onnx
import onnx_ir as ir
from onnx import inliner

from ortpipe.errors import ModelError, nearest
from ortpipe.graph.core.check import inferred


def with_bodies(model: onnx.ModelProto, op_types: Iterable[str]) -> onnx.ModelProto:
    """Return the model with these operators replaced by ONNX's function bodies, with shapes inferred."""
    initializer_types = ((tensor.name, tensor.data_type, tensor.dims) for tensor in model.graph.initializer)
    # some bodies need types
    model.graph.value_info.extend(onnx.helper.make_tensor_value_info(*t) for t in initializer_types)
    omitted = onnx.helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None)
    model.graph.value_info.append(omitted)  # the inliner asks for the type of omitted inputs, too
    chosen = [("", op_type) for op_type in sorted(op_types)]
    model = inliner.inline_selected_functions(model, chosen, inline_schema_functions=True)
    if omitted in model.graph.value_info:
        model.graph.value_info.remove(omitted)
    return inferred(model)


def write_defaults(model: ir.Model, op_types: Container[str] | None = None) -> None:
    """Write out the default attributes of function operators (all, or `op_types`): a body may refer to one by name."""
    opset = model.graph.opset_imports.get("", 1)
    for node in model.graph.all_nodes():
        chosen = op_types is None or node.op_type in op_types
        if chosen and not node.domain and is_function(node):
            for name, attribute in onnx.defs.get_schema(node.op_type, opset, "").attributes.items():
                if name not in node.attributes and attribute.default_value.name:
                    node.attributes[name] = ir.from_proto(attribute.default_value)


def is_function(node: ir.Node) -> bool:
    """Return whether an operator of ONNX is defined by a function body."""
    schema = onnx.defs.get_schema(node.op_type, node.domain)
    return bool(schema.has_function or schema.has_context_dependent_function)


def called_alone(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return a model that only calls one of the model's local functions, `Name` or `domain:Name`.

    A function declares no types, so inputs and attributes are those of the first call in the graph.

    Raises:
        ModelError: there is no such function, several have that name, or no node calls it.
    """
    functions = {f"{f.domain}:{f.name}": f for f in model.functions}
    candidates = [f for key, f in functions.items() if name in (key, f.name)]
    if len(candidates) != 1:
        fix = nearest(name, functions) if functions else "Leave it out: the model has no local functions."
        raise ModelError("function must name one of the model's local functions.", got=repr(name), fix=fix)
    [function] = candidates
    key = (function.domain, function.name, function.overload)
    shaped = inferred(model)
    calls = [node for node in shaped.graph.node if (node.domain, node.op_type, node.overload) == key]
    if not calls:
        actual = f"{name!r}, which the graph's nodes do not call"
        raise ModelError(
            "A function must be called, for it has types only there.",
            got=actual,
            fix="Name one that they call, or add a call.",
        )
    graph = shaped.graph
    types = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
    types |= {t.name: onnx.helper.make_tensor_type_proto(t.data_type, t.dims) for t in graph.initializer}
    call = onnx.NodeProto()
    call.CopyFrom(calls[0])
    single = onnx.ModelProto()
    single.CopyFrom(shaped)
    single.ClearField("graph")
    single.graph.name = function.name
    for names, formal, declared in (
        (call.input, function.input, single.graph.input),
        (call.output, function.output, single.graph.output),
    ):
        declared.extend(
            onnx.helper.make_value_info(inside, types.get(outside, onnx.TypeProto()))
            for inside, outside in zip(formal, names, strict=False)
            if outside
        )
        names[:] = [inside if outside else "" for inside, outside in zip(formal, names, strict=False)]
    single.graph.node.append(call)
    return single


def initializers_to_constants(graph: ir.Graph) -> None:
    """Turn a graph's initializers into Constant nodes, which can be moved and copied like any other node."""
    for name, value in list(graph.initializers.items()):
        constant = ir.node("Constant", [], {"value": value.const_value}, name=name)
        output = constant.outputs[0]
        output.type, output.shape = value.type, value.shape
        ir.convenience.replace_all_uses_with(value, output, replace_graph_outputs=True)
        del graph.initializers[name]
        output.name = name
        graph.insert_before(graph[0], constant)
