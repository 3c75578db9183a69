"""Operators that are functions, replaced by their bodies where no rule is faster or stabler than the body's own."""

from __future__ import annotations

import onnx
from onnx import inliner


def expanded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with model-local functions inlined, and ONNX's own functions that have no rule.

    ONNX's attributes and opset decide which body an operator has; what is left either has a rule or is an error.
    """
    from ortpipe.stages.derive.rules import RULES

    if model.functions:
        model = inliner.inline_local_functions(model)
    for _ in range(3):  # a body may call functions again
        without = {
            (n.domain, n.op_type) for n in _nodes(model.graph) if n.domain in ("", "ai.onnx") and _is_function(n)
        }
        chosen = sorted(f for f in without if f[1] not in RULES)
        if not chosen:
            break
        model = inliner.inline_selected_functions(model, chosen, inline_schema_functions=True)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    inner = [n for node in graph.node for a in node.attribute if a.HasField("g") for n in _nodes(a.g)]
    return [*graph.node, *inner]


def _is_function(node: onnx.NodeProto) -> bool:
    schema = onnx.defs.get_schema(node.op_type, node.domain)
    return bool(schema.has_function or schema.has_context_dependent_function)
