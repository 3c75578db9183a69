"""Integer arithmetic on constants, done beforehand: exporters compute sizes that shape inference does not follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from ortpipe.graph.check import inferred

LARGEST = 1024  # elements; sizes, axes and indices are small, and what is larger is data
INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL)
ARITHMETIC = {
    *("Abs", "Add", "Cast", "Concat", "Div", "Equal", "Gather", "Greater", "Less", "Max", "Min", "Mod", "Mul", "Neg"),
    *("Not", "ReduceProd", "ReduceSum", "Reshape", "Slice", "Squeeze", "Sub", "Unsqueeze", "Where"),
}


def with_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with shapes inferred and every integer that follows from constants and static sizes written out.

    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
    ...   g (float[N,6] X) => (float[A,B,C] y) {
    ...     two = Constant<value_ints=[2]>() size = Shape<start=1>(X) half = Div(size, two)
    ...     rest = Constant<value_ints=[-1]>() shape = Concat<axis=0>(rest, two, half) y = Reshape(X, shape) }''')
    >>> made = with_sizes(model)
    >>> shape = made.graph.output[0].type.tensor_type.shape
    >>> [d.dim_value for d in shape.dim], [n.op_type for n in made.graph.node]
    ([0, 2, 3], ['Constant', 'Constant', 'Constant', 'Constant', 'Constant', 'Reshape'])
    """
    model = inferred(model)
    while _fold(model.graph):
        model = inferred(model)
    return model


def _fold(graph: onnx.GraphProto, around: Mapping[str, np.ndarray] | None = None) -> bool:
    """Put constants in the place of the integer nodes that depend on nothing else; say whether there were any."""
    fed = {i.name for i in graph.input}
    static = {v.name: v.type.tensor_type.shape.dim for v in (*graph.input, *graph.value_info)}
    own = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer if t.name not in fed and _small(t)}
    known = {**(around or {}), **own}
    changed = False
    for node in graph.node:
        changed |= sum(_fold(a.g, known) for a in node.attribute if a.HasField("g")) > 0  # all of them
        if node.op_type == "Constant":
            value = _constant(node)
        else:
            value = _value(node, known, static)
            changed |= value is not None
        if value is None:
            continue
        known[node.output[0]] = value
        if node.op_type != "Constant":
            constant = onnx.helper.make_node("Constant", [], node.output, value=onnx.numpy_helper.from_array(value))
            constant.name = node.name
            node.CopyFrom(constant)
    return changed


def _value(node: onnx.NodeProto, known: Mapping[str, np.ndarray], static: Mapping[str, Any]) -> np.ndarray | None:
    """Return what a node always gives, if that is a few integers or booleans."""
    if node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        return None
    given = {a.name: a.i for a in node.attribute}
    if node.op_type in ("Shape", "Size"):
        dims = list(static.get(node.input[0], ()))[given.get("start") : given.get("end")]
        if not dims or not all(d.HasField("dim_value") for d in dims):
            return None
        shape = np.array([d.dim_value for d in dims], np.int64)
        return shape if node.op_type == "Shape" else np.array(shape.prod())
    if node.op_type not in ARITHMETIC or not all(name in known for name in node.input if name):
        return None
    if node.op_type == "Cast" and given["to"] not in INTEGERS:
        return None
    from onnx.reference import ReferenceEvaluator  # late: most models have no such node, and it takes its time

    value = np.asarray(ReferenceEvaluator(node).run(None, {name: known[name] for name in node.input if name})[0])
    return value if value.dtype.kind in "ib" and value.size <= LARGEST else None


def _constant(node: onnx.NodeProto) -> np.ndarray | None:
    """Return what a Constant holds, if that is a few integers or booleans."""
    [given] = node.attribute
    if given.name == "value" and _small(given.t):
        return onnx.numpy_helper.to_array(given.t)
    return np.array(onnx.helper.get_attribute_value(given)) if given.name in ("value_int", "value_ints") else None


def _small(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in INTEGERS and int(np.prod(tensor.dims)) <= LARGEST
