"""Operators that are functions, replaced by their bodies where no rule is faster or stabler than the body's own."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx
import onnx_ir as ir
from onnx import inliner

from ortpipe.graph import query
from ortpipe.graph.builder import Builder, Names, used_names
from ortpipe.graph.check import inferred
from ortpipe.graph.rewrite import replace
from ortpipe.graph.sizes import with_sizes
from ortpipe.stages.derive.expansions import EXPANSIONS
from ortpipe.stages.derive.rules import RULES
from ortpipe.stages.derive.walk import active, operands

KEPT = ("Range",)  # counts, mostly; its body would be a loop


def expanded(model: onnx.ModelProto, targets: Sequence[str] = ()) -> onnx.ModelProto:
    """Return the model with model-local functions inlined, and ONNX's own functions that have no rule.

    ONNX's attributes and opset decide which body an operator has; what is left either has a rule or is an error. What
    depends on no target (a Range of positions, say) stays as it is; recurrent operators and loops that do are scans.
    """
    if model.functions:
        model = inliner.inline_local_functions(model)
    model = _with_defaults(model)
    for _ in range(3):  # a body may call functions again
        without = {
            (n.domain, n.op_type)
            for n in _dependent(model.graph, set(targets))
            if n.domain in ("", "ai.onnx") and _is_function(n)
        }
        chosen = sorted(f for f in without if f[1] not in (*RULES, *KEPT))
        if not chosen:
            break
        model = inliner.inline_selected_functions(_typed(model), chosen, inline_schema_functions=True)
    return _without_loops(with_sizes(model), targets)


def with_bodies(model: onnx.ModelProto, kinds: Collection[str]) -> onnx.ModelProto:
    """Return the model with model-local functions inlined, and these of ONNX's operators written as their bodies."""
    if model.functions:
        model = inliner.inline_local_functions(model)
    model = _with_defaults(model)
    for _ in range(3):  # a body may call functions again
        chosen = sorted({("", n.op_type) for n in query.all_nodes(model.graph) if n.op_type in kinds})
        if not chosen:
            break
        model = inliner.inline_selected_functions(_typed(model), chosen, inline_schema_functions=True)
    return inferred(model)


def _without_loops(model: onnx.ModelProto, sources: Sequence[str]) -> onnx.ModelProto:
    """Return the model with recurrent operators and loops between the sources and the loss written as plain scans."""
    if not any(n.op_type in ("If", *EXPANSIONS) for n in query.all_nodes(model.graph)):
        return model
    own = ir.from_proto(model)
    names = Names(used_names(own.graph))
    reached = active(own.graph, [query.value(own.graph, name) for name in sources])
    for node in list(own.graph):
        if any(x in reached for x in operands(node) if x is not None):
            _expand(node, names)
    return with_sizes(ir.to_proto(own))


def _expand(node: ir.Node, names: Names) -> None:
    """Put a node's expansion in its place, the nodes of its subgraphs first."""
    for subgraph in query.subgraphs(node):
        _initializers_to_constants(subgraph)
        for inner in list(subgraph):
            _expand(inner, names)
    if node.op_type not in EXPANSIONS or node.domain not in ("", "ai.onnx"):
        return
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    values = EXPANSIONS[node.op_type](Builder(graph, node.op_type, before=node, names=names), node)
    if values is not None:
        replace(node, values)


def _initializers_to_constants(graph: ir.Graph) -> None:
    """Turn a subgraph's initializers into Constant nodes, which can be moved and copied like any other node."""
    for name, value in list(graph.initializers.items()):
        constant = ir.node("Constant", [], {"value": value.const_value}, name=name)
        ir.convenience.replace_all_uses_with(value, constant.outputs[0], replace_graph_outputs=True)
        del graph.initializers[name]
        constant.outputs[0].name = name
        graph.insert_before(graph[0], constant)


def without_identities(graph: ir.Graph) -> None:
    """Take out Identity nodes and casts to a value's own type, but those that give a graph's output its name.

    A subgraph has to make its outputs.
    """
    for node in list(graph.all_nodes()):
        if node.domain not in ("", "ai.onnx") or node.op_type not in ("Identity", "Cast"):
            continue
        x, y = node.inputs[0], node.outputs[0]
        assert x is not None and node.graph is not None
        same = node.op_type == "Identity" or x.dtype == node.attributes["to"].as_int()
        if same and not y.is_graph_output():
            x.type, x.shape = x.type or y.type, x.shape or y.shape
            ir.convenience.replace_all_uses_with(y, x)
            node.graph.remove(node, safe=True)


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every value's type said: some bodies depend on it, and the inliner infers nothing."""
    model = inferred(model)
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
        inner = [n for a in node.attribute if a.HasField("g") for n in query.all_nodes(a.g)]
        if names.intersection(node.input, *(n.input for n in inner)):
            names.update(node.output)
            found += [node, *inner]
    return found


def _with_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every function's default attributes written out: a body may refer to one by name."""
    own = onnx.ModelProto()
    own.CopyFrom(model)
    opset = next((o.version for o in own.opset_import if o.domain in ("", "ai.onnx")), 1)
    for node in query.all_nodes(own.graph):
        if node.domain in ("", "ai.onnx") and _is_function(node):
            schema, given = onnx.defs.get_schema(node.op_type, opset, ""), {a.name for a in node.attribute}
            missing = [a.default_value for name, a in schema.attributes.items() if name not in given]
            node.attribute.extend(a for a in missing if a.name)
    return own


def _is_function(node: onnx.NodeProto) -> bool:
    schema = onnx.defs.get_schema(node.op_type, node.domain)
    return bool(schema.has_function or schema.has_context_dependent_function)
