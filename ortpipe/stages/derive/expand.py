"""Operators that are functions, replaced by their bodies where no rule is faster or stabler than the body's own."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir
from onnx import inliner

from ortpipe.graph import query
from ortpipe.graph.builder import Builder, Names, used_names

KEPT = ("Range",)  # counts, mostly; its body would be a loop


def expanded(model: onnx.ModelProto, sources: Sequence[str] = ()) -> onnx.ModelProto:
    """Return the model with model-local functions inlined, and ONNX's own functions that have no rule.

    ONNX's attributes and opset decide which body an operator has; what is left either has a rule or is an error.
    What depends on the `sources` (names of parameters and inputs) is also freed of recurrent operators and loops.
    """
    from ortpipe.stages.derive.rules import RULES

    if model.functions:
        model = inliner.inline_local_functions(model)
    for _ in range(3):  # a body may call functions again
        without = {
            (n.domain, n.op_type) for n in _nodes(model.graph) if n.domain in ("", "ai.onnx") and _is_function(n)
        }
        chosen = sorted(f for f in without if f[1] not in (*RULES, *KEPT))
        if not chosen:
            break
        model = inliner.inline_selected_functions(model, chosen, inline_schema_functions=True)
    return _without_loops(onnx.shape_inference.infer_shapes(model, data_prop=True), sources)


def _without_loops(model: onnx.ModelProto, sources: Sequence[str]) -> onnx.ModelProto:
    """Return the model with recurrent operators and loops between the sources and the loss written as plain scans."""
    from ortpipe.stages.derive.backward import active, operands
    from ortpipe.stages.derive.expansions import EXPANSIONS

    if not any(n.op_type in ("If", *EXPANSIONS) for n in _nodes(model.graph)):
        return model
    own = ir.from_proto(model)
    names = Names(used_names(own.graph))
    reached = active(own.graph, [query.value(own.graph, name) for name in sources])
    for node in list(own.graph):
        if any(x in reached for x in operands(node) if x is not None):
            _expand(node, names)
    return onnx.shape_inference.infer_shapes(ir.to_proto(own), data_prop=True)


def _expand(node: ir.Node, names: Names) -> None:
    """Put a node's expansion in its place, the nodes of its subgraphs first."""
    from ortpipe.stages.derive.expansions import EXPANSIONS

    for subgraph in query.subgraphs(node):
        _initializers_to_constants(subgraph)
        for inner in list(subgraph):
            _expand(inner, names)
    if node.op_type not in EXPANSIONS or node.domain not in ("", "ai.onnx"):
        return
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    made = EXPANSIONS[node.op_type](Builder(graph, node.op_type, before=node, names=names), node)
    if made is None:
        return
    for old, new in zip(node.outputs, made, strict=True):
        if new is not None:
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
            new.name, old.name = old.name, None
    graph.remove(node, safe=True)


def _initializers_to_constants(graph: ir.Graph) -> None:
    """Turn a subgraph's initializers into Constant nodes, which can be moved and copied like any other node."""
    for name, value in list(graph.initializers.items()):
        constant = ir.node("Constant", [], {"value": value.const_value}, name=name)
        ir.convenience.replace_all_uses_with(value, constant.outputs[0], replace_graph_outputs=True)
        del graph.initializers[name]
        constant.outputs[0].name = name
        graph.insert_before(graph[0], constant)


def without_identities(graph: ir.Graph) -> None:
    """Take out Identity nodes, but those that give a graph's output its name: a subgraph has to make its outputs."""
    for node in list(graph.all_nodes()):
        if node.op_type == "Identity" and node.domain in ("", "ai.onnx") and not node.outputs[0].is_graph_output():
            x, y = node.inputs[0], node.outputs[0]
            assert x is not None and node.graph is not None
            x.type, x.shape = x.type or y.type, x.shape or y.shape
            ir.convenience.replace_all_uses_with(y, x)
            node.graph.remove(node, safe=True)


def _nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    inner = [n for node in graph.node for a in node.attribute if a.HasField("g") for n in _nodes(a.g)]
    return [*graph.node, *inner]


def _is_function(node: onnx.NodeProto) -> bool:
    schema = onnx.defs.get_schema(node.op_type, node.domain)
    return bool(schema.has_function or schema.has_context_dependent_function)
