"""Branches that are decided before a model runs, by constants or by sizes."""

import collections

import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.builder import Names, used_names
from ortpipe.graph.check import infer
from ortpipe.graph.sizes import fold_sizes


def take_branches(model: ir.Model) -> None:
    """Put the branch that is taken in the place of each If whose condition is known, in place.

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
        node = decided[0]  # it may hold others, and others it
        _inline(model.graph, node, "then_branch" if _condition(node) else "else_branch")
        infer(model)


def count_names(graph: ir.Graph) -> collections.Counter[str]:
    """Return how many values have each name: in two branches, one may stand for two."""
    graphs = [graph, *(inner for node in graph.all_nodes() for inner in query.subgraphs(node))]
    made = [y for node in graph.all_nodes() for y in node.outputs]
    held = [v for inner in graphs for v in {*inner.inputs, *inner.initializers.values()}]
    return collections.Counter(str(value.name) for value in (*made, *held))


def _is_if(node: ir.Node) -> bool:
    return node.op_type == "If" and not node.domain


def _condition(node: ir.Node) -> bool | None:
    value = node.inputs[0]
    known = None if value is None or value.is_graph_input() else query.constant(value)
    return None if known is None else bool(known.all())


def _inline(graph: ir.Graph, node: ir.Node, name: str) -> None:
    branch, around = node.attributes[name].as_graph(), node.graph
    assert isinstance(around, ir.Graph)
    count, names = count_names(graph), Names(used_names(graph))
    nodes, results, held = list(branch), list(branch.outputs), list(branch.initializers.values())
    for value in (*held, *(y for inner in nodes for y in inner.outputs)):
        if count[str(value.name)] > 1:
            value.name = names.fresh(str(value.name))
    branch.outputs.clear()
    branch.remove(nodes)
    for value in held:
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
    left = [inner for graph in query.subgraphs(node) for inner in graph.all_nodes()]
    around.remove(node, safe=True)
    for inner in left:  # what the other branch reads is no longer used by it
        inner.resize_inputs(0)
