"""Replace operators that are functions by their bodies, unless a rule is faster or more stable."""

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir
from onnx_ir import Graph, Node
from onnx_ir.passes.common import InlinePass

from ortpipe.autodiff.table import EXPANSIONS, RULES
from ortpipe.autodiff.walk import active, operands
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.graph.core.inference import infer
from ortpipe.graph.core.operators import having
from ortpipe.graph.core.rewrite import replace
from ortpipe.graph.importing import functions
from ortpipe.graph.importing.sizes import fold_sizes

KEPT = having("predicate") | {"Range"}  # operators on counters; the body of Range would be a loop


def expanded(model: ir.Model, outputs: Sequence[str], targets: Sequence[str] = ()) -> ir.Model:
    """Return the model with its local functions inlined, and ONNX's own functions too if they have no rule.

    An operator's attributes and opset select its body; an operator left without a rule is an error. Operators that no
    gradient passes through, such as a Range of positions, are kept. Recurrent operators and loops become scans.
    """

    def without_rule(model: ir.Model) -> set[str]:
        nodes = between(model.graph, outputs, targets)
        nodes += [n for node in nodes for inner in query.subgraphs(node) for n in inner.all_nodes()]
        return {n.op_type for n in nodes if not n.domain and functions.is_function(n)} - {*RULES, *KEPT}

    model = _inlined(model, without_rule)
    fold_sizes(model)
    if any(n.op_type in ("If", *EXPANSIONS) for n in model.graph.all_nodes()):
        names = Names(used_names(model.graph))
        changed = [_expand(node, names) for node in between(model.graph, outputs, targets)]
        if any(changed):
            infer(model)
            fold_sizes(model)
    return model


def _inlined(model: ir.Model, choose: Callable[[ir.Model], set[str]]) -> ir.Model:
    if model.functions:
        InlinePass()(model)
        infer(model)
    functions.write_defaults(model)
    for _ in range(3):  # a body may call functions in turn
        if not (chosen := choose(model)):
            break
        model = ir.from_proto(functions.with_bodies(ir.to_proto(model), chosen))
    return model


def _expand(node: Node, names: Names) -> bool:
    """Replace a node by its expansion, its subgraphs first; return whether the node may have changed."""
    inner = query.subgraphs(node)
    for subgraph in inner:
        functions.initializers_to_constants(subgraph)
        for nested in list(subgraph):
            _expand(nested, names)
    if node.op_type not in EXPANSIONS or node.domain:
        return bool(inner)
    graph = node.graph
    assert isinstance(graph, Graph)
    op = Builder(graph, node.op_type, before=node, names=names)
    with op.formulas():
        values = EXPANSIONS[node.op_type](op, node)
    if values is not None:
        replace(node, values)
    return values is not None or bool(inner)


def between(graph: Graph, outputs: Iterable[str], sources: Iterable[str]) -> list[Node]:
    """Return the nodes that a gradient passes between these outputs and sources, all given by name."""
    values = query.values(graph)
    needed, reached = {values[name] for name in outputs}, active(graph, [values[name] for name in sources])
    nodes = []
    for node in reversed(graph):
        read = [x for x in operands(node) if x is not None]
        if any(y in needed and y in reached for y in node.outputs) and not reached.isdisjoint(read):
            needed.update(read)
            nodes.append(node)
    return nodes[::-1]
