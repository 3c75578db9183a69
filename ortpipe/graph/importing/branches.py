"""Resolve branches whose condition follows from constants or static sizes, and states that never change."""

import collections
from typing import Any

import onnx_ir as ir

from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.graph.core.check import infer
from ortpipe.graph.core.rewrite import rewrite
from ortpipe.graph.importing.sizes import fold_sizes


def take_branches(model: ir.Model) -> None:
    """Replace each If whose condition is constant by the branch that it takes, in place.

    >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,2] y) {
    ...   rate = Constant<value_int=16000>() known = Constant<value_int=16000>() same = Equal(rate, known)
    ...   y = If(same) <then_branch = t () => (float[N,2] a) { a = Neg(X) },
    ...                else_branch = e () => (float[N,2] b) { b = Abs(X) }> }''')
    >>> take_branches(model)
    >>> [node.op_type for node in model.graph if node.op_type != "Constant"], model.graph.outputs[0].name
    (['Neg'], 'y')
    """
    while any(_is_if(node) for node in model.graph.all_nodes()):
        fold_sizes(model, deep=True)
        decided = [n for n in model.graph.all_nodes() if _is_if(n) and _condition(n) is not None]
        if not decided:
            return
        node = decided[0]  # one at a time, for they may be nested
        _inline(model.graph, node, "then_branch" if _condition(node) else "else_branch")
        infer(model)


def capture_unchanged(graph: ir.Graph) -> None:
    """Replace each state that a loop's body returns unchanged by the outer value, in place.

    Exporters pass the weights of a recurrence from step to step this way; as states they would not count as weights.
    """
    rewrite(graph, {"Loop": _without_unchanged, "Scan": _without_unchanged}, nodes=graph.all_nodes())


def _without_unchanged(op: Builder, node: ir.Node) -> list[ir.Value | None] | None:
    body, attributes = node.attributes["body"].as_graph(), {n: a.value for n, a in node.attributes.items()}
    first, ends = (2, 1) if node.op_type == "Loop" else (0, 0)
    states = len(node.inputs) - first - attributes.get("num_scan_inputs", 0)
    unchanged = {}
    for place in range(first, first + states):
        value, end, outer = body.inputs[place], body.outputs[ends + place - first], node.inputs[place]
        maker = end.producer()
        is_copy = maker is not None and maker.op_type == "Identity" and maker.inputs[0] is value and not end.uses()
        if outer is not None and list(body.outputs).count(value) == (end is value) and (end is value or is_copy):
            unchanged[place] = outer
    if not unchanged:
        return None
    remaining = [place for place in range(len(node.inputs)) if place not in unchanged]
    ends_left = [i for i in range(len(body.outputs)) if i - ends + first not in unchanged or i < ends]
    makers = [body.outputs[i].producer() for i in range(len(body.outputs)) if i not in ends_left]
    body.outputs[:] = [body.outputs[i] for i in ends_left]
    body.remove([maker for maker in makers if maker is not None], safe=True)
    for place, outer in unchanged.items():
        ir.convenience.replace_all_uses_with(body.inputs[place], outer)
    body.inputs[:] = [body.inputs[place] for place in remaining]
    node.attributes.pop("body")  # a graph belongs to one node
    count = len(node.outputs) - len(unchanged)
    inputs = [node.inputs[place] for place in remaining]
    results: Any = getattr(op, node.op_type)(*inputs, outputs=count, **attributes) if count else ()
    values = iter([results] if count == 1 else results)
    copies = {place - first: op.Identity(outer) for place, outer in unchanged.items()}
    return [copies[i] if i in copies else next(values) for i in range(len(node.outputs))]


def count_names(graph: ir.Graph) -> collections.Counter[str]:
    """Return how many values have each name: two branches may use the same one."""
    graphs = [graph, *(inner for node in graph.all_nodes() for inner in query.subgraphs(node))]
    outputs = [y for node in graph.all_nodes() for y in node.outputs]
    inputs_and_initializers = [v for inner in graphs for v in {*inner.inputs, *inner.initializers.values()}]
    return collections.Counter(str(value.name) for value in (*outputs, *inputs_and_initializers))


def _is_if(node: ir.Node) -> bool:
    return node.op_type == "If" and not node.domain


def _condition(node: ir.Node) -> bool | None:
    value = node.inputs[0]
    array = None if value is None or value.is_graph_input() else query.constant(value)
    return None if array is None else bool(array.all())


def _inline(graph: ir.Graph, node: ir.Node, name: str) -> None:
    branch, around = node.attributes[name].as_graph(), node.graph
    assert isinstance(around, ir.Graph)
    count, names = count_names(graph), Names(used_names(graph))
    nodes, results, initializers = list(branch), list(branch.outputs), list(branch.initializers.values())
    for value in (*initializers, *(y for inner in nodes for y in inner.outputs)):
        if count[str(value.name)] > 1:
            value.name = names.fresh(str(value.name))
    branch.outputs.clear()
    branch.remove(nodes)
    for value in initializers:
        del branch.initializers[str(value.name)]
        graph.register_initializer(value)
    around.insert_before(node, nodes)
    for old, value in zip(node.outputs, results, strict=True):
        new = value
        if value.producer() not in nodes or value.is_graph_output():
            copy = ir.node("Identity", [value], name=names.fresh(f"{node.name or old.name}/taken"))
            around.insert_before(node, copy)
            new = copy.outputs[0]
        new.type, new.shape = value.type or old.type, value.shape if value.shape is not None else old.shape
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        new.name, old.name = old.name, None
    unused = [inner for graph in query.subgraphs(node) for inner in graph.all_nodes()]
    around.remove(node, safe=True)
    for inner in unused:  # so that the other branch no longer counts as a user
        inner.resize_inputs(0)
