"""Fold integer arithmetic on constants: exporters compute sizes that shape inference does not follow.

Branches whose condition then is constant, and states of loops that never change, are resolved, too.
"""

import collections
import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.graph.core.inference import infer
from ortpipe.graph.core.operators import having
from ortpipe.graph.core.rewrite import rewrite

LARGEST_FOLDED = 1024  # elements; sizes, axes and indices are small, larger arrays are data
INTEGERS = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)
SHAPE, ARITHMETIC, DEEP = having("shape"), having("sizes"), having("sizes", "pads")


def fold_sizes(model: ir.Model, *, deep: bool = False) -> None:
    """Replace integers that follow from constants and static sizes by constants, and infer the shapes again.

    `deep` also folds operators that arrange pads, and static sizes that are gathered from a partly dynamic shape.

    >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["": 21]>
    ...   g (float[N,6] X) => (float[A,B,C] y) {
    ...     two = Constant<value_ints=[2]>() size = Shape<start=1>(X) half = Div(size, two)
    ...     rest = Constant<value_ints=[-1]>() shape = Concat<axis=0>(rest, two, half) y = Reshape(X, shape) }''')
    >>> fold_sizes(model)
    >>> list(model.graph.outputs[0].shape)[1:], [n.op_type for n in model.graph]
    ([2, 3], ['Constant', 'Constant', 'Constant', 'Constant', 'Constant', 'Reshape'])
    """
    while _fold(model.graph, deep) and not _is_known(model.graph):
        infer(model)


def _is_known(graph: ir.Graph) -> bool:
    """Return whether every size is a number or an input's, so that inference has nothing to add."""
    free = {d.value for x in graph.inputs for d in x.shape or () if not isinstance(d, int)} - {None}
    values = [value for node in graph.all_nodes() for value in node.outputs]
    return all(v.type is not None and v.shape is not None for v in values) and all(
        isinstance(d, int) or d.value in free for v in values for d in v.shape or ()
    )


def _fold(graph: ir.Graph, deep: bool) -> bool:
    """Replace integer nodes that depend on constants only by constants; return whether there were any."""
    changed = False
    for node in list(graph):
        for inner in query.subgraphs(node):
            changed |= _fold(inner, deep)
        value = _value(node, deep)
        if value is None:
            continue
        [old], tensor = node.outputs, ir.AttrTensor("value", ir.Tensor(value))
        constant = ir.node("Constant", [], {"value": tensor}, name=node.name)
        ir.convenience.replace_nodes_and_values(graph, node, [node], [constant], [old], constant.outputs)
        changed = True
    return changed


def _value(node: ir.Node, deep: bool) -> np.ndarray | None:
    """Return a node's constant output, if it is one of a few integers or booleans."""
    if node.domain or len(node.outputs) != 1:
        return None
    if node.op_type in SHAPE:
        [x] = node.inputs
        start, end = node.attributes.get_int("start"), node.attributes.get_int("end")
        dims = list(x.shape or ())[start:end] if x is not None else []
        if not dims or not all(isinstance(d, int) for d in dims):
            return None
        shape = np.array(dims, np.int64)
        return shape if node.op_type == "Shape" else np.array(shape.prod())
    if deep and node.op_type == "Gather" and (gathered := _gathered_sizes(node)) is not None:
        return gathered
    if node.op_type not in (DEEP if deep else ARITHMETIC):
        return None
    if node.op_type == "Cast" and node.attributes.get_int("to") not in INTEGERS:
        return None
    values = {str(x.name): _integers(x) for x in node.inputs if x is not None}
    inputs = {name: value for name, value in values.items() if value is not None}
    if len(inputs) < len(values):
        return None
    if node.op_type == "ConstantOfShape" and math.prod(map(int, *inputs.values())) > LARGEST_FOLDED:
        return None
    if node.op_type == "Range":
        first, limit, delta = (inputs[str(x.name)] for x in node.inputs if x is not None)
        if delta and (limit - first) // delta > LARGEST_FOLDED:
            return None
    from onnx.reference import ReferenceEvaluator  # late: slow to import, and most models have no such node

    [result] = ReferenceEvaluator(ir.serde.serialize_node(node)).run(None, inputs)
    value = np.asarray(result)
    return value if value.dtype.kind in "ib" and value.size <= LARGEST_FOLDED else None


def _gathered_sizes(node: ir.Node) -> np.ndarray | None:
    """Return the sizes that a Gather picks from a shape, if they are static."""
    shape, index = node.inputs
    producer = shape.producer() if shape is not None else None
    places = _integers(index) if index is not None else None
    x = producer.inputs[0] if producer is not None and producer.op_type == "Shape" else None
    if producer is None or x is None or x.shape is None or places is None:
        return None
    dims = list(x.shape)[producer.attributes.get_int("start", 0) : producer.attributes.get_int("end", None)]
    static = [dims[int(place)] for place in places.ravel() if place < len(dims) and isinstance(dims[int(place)], int)]
    return np.array(static, np.int64).reshape(places.shape) if len(static) == places.size else None


def _integers(value: ir.Value) -> np.ndarray | None:
    """Return a value's constant, if it is one of a few integers or booleans."""
    tensor = None if value.is_graph_input() else query.tensor(value)
    return tensor.numpy() if tensor is not None and tensor.dtype in INTEGERS and tensor.size <= LARGEST_FOLDED else None


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
