"""Fold integer arithmetic on constants: exporters compute sizes that shape inference does not follow."""

import math

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core import query
from ortpipe.graph.core.check import infer
from ortpipe.graph.core.operators import having

LARGEST = 1024  # elements; sizes, axes and indices are small, larger arrays are data
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
    if node.op_type not in (DEEP if deep else ARITHMETIC) or (
        node.op_type == "Cast" and node.attributes.get_int("to") not in INTEGERS
    ):
        return None
    values = {str(x.name): _integers(x) for x in node.inputs if x is not None}
    inputs = {name: value for name, value in values.items() if value is not None}
    if len(inputs) < len(values):
        return None
    if node.op_type == "ConstantOfShape" and any(math.prod(map(int, sizes)) > LARGEST for sizes in inputs.values()):
        return None
    if node.op_type == "Range" and _steps(*(inputs[str(x.name)] for x in node.inputs if x is not None)) > LARGEST:
        return None
    from onnx.reference import ReferenceEvaluator  # late: slow to import, and most models have no such node

    [result] = ReferenceEvaluator(ir.serde.serialize_node(node)).run(None, inputs)
    value = np.asarray(result)
    return value if value.dtype.kind in "ib" and value.size <= LARGEST else None


def _steps(start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> int:
    return int((limit - start) // delta) if delta else 0


def _gathered_sizes(node: ir.Node) -> np.ndarray | None:
    """Return the sizes that a Gather picks from a shape, if they are static."""
    shape, index = node.inputs
    producer = shape.producer() if shape is not None else None
    places = _integers(index) if index is not None else None
    x = producer.inputs[0] if producer is not None and producer.op_type == "Shape" and not producer.attributes else None
    if x is None or x.shape is None or places is None or not (places < len(x.shape)).all():
        return None
    sizes = [x.shape[int(place)] for place in places.ravel()]
    static = [d for d in sizes if isinstance(d, int)]
    return np.array(static, np.int64).reshape(places.shape) if len(static) == len(sizes) else None


def _integers(value: ir.Value) -> np.ndarray | None:
    """Return a value's constant, if it is one of a few integers or booleans."""
    tensor = None if value.is_graph_input() else query.tensor(value)
    return tensor.numpy() if tensor is not None and tensor.dtype in INTEGERS and tensor.size <= LARGEST else None
