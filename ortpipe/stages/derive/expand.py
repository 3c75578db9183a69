"""Operators that are functions, replaced by their bodies where no rule is faster or stabler than the body's own."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import inliner


def expanded(model: onnx.ModelProto, targets: Sequence[str]) -> onnx.ModelProto:
    """Return the model with model-local functions inlined, and ONNX's own functions that have no rule.

    ONNX's attributes and opset decide which body an operator has; what is left either has a rule or is an error. What
    depends on no target (a Range of positions, say) stays as it is.
    """
    from ortpipe.stages.derive.rules import RULES

    if model.functions:
        model = inliner.inline_local_functions(model)
    model = _with_defaults(model)
    for _ in range(3):  # a body may call functions again
        without = {
            (n.domain, n.op_type)
            for n in _dependent(model.graph, set(targets))
            if n.domain in ("", "ai.onnx") and _is_function(n)
        }
        chosen = sorted(f for f in without if f[1] not in RULES)
        if not chosen:
            break
        model = inliner.inline_selected_functions(_typed(model), chosen, inline_schema_functions=True)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every value's type said: some bodies depend on it, and the inliner infers nothing."""
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    known = {v.name for v in (*model.graph.input, *model.graph.value_info)}
    for tensor in model.graph.initializer:
        if tensor.name not in known:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            model.graph.value_info.append(value)
    return model


def _dependent(graph: onnx.GraphProto, names: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes that depend on one of these values, and all nodes of the subgraphs that they hold."""
    found = []
    for node in graph.node:
        inner = [n for a in node.attribute if a.HasField("g") for n in _nodes(a.g)]
        if names.intersection(node.input, *(n.input for n in inner)):
            names.update(node.output)
            found += [node, *inner]
    return found


def _with_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every function's default attributes written out: a body may refer to one by name."""
    own = onnx.ModelProto()
    own.CopyFrom(model)
    opset = next((o.version for o in own.opset_import if o.domain in ("", "ai.onnx")), 1)
    for node in _nodes(own.graph):
        if node.domain in ("", "ai.onnx") and _is_function(node):
            schema, given = onnx.defs.get_schema(node.op_type, opset, ""), {a.name for a in node.attribute}
            missing = [a.default_value for name, a in schema.attributes.items() if name not in given]
            node.attribute.extend(a for a in missing if a.name)
    return own


def _nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    inner = [n for node in graph.node for a in node.attribute if a.HasField("g") for n in _nodes(a.g)]
    return [*graph.node, *inner]


def _is_function(node: onnx.NodeProto) -> bool:
    schema = onnx.defs.get_schema(node.op_type, node.domain)
    return bool(schema.has_function or schema.has_context_dependent_function)
