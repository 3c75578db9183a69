"""Simplify the gradient while it is built: the same values for less work."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import Graph, Node, Value
from onnx_ir.passes.common import CommonSubexpressionEliminationPass

from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.operators import having
from ortpipe.graph.core.types import is_scalar

RANDOM = having("random")


class Simplifier:
    """Merges equal expressions of a builder, keeps scalars scalar, and joins factors and signs.

    Calls with the same operator, inputs and attributes return the same value, including those of forward nodes.
    """

    def __init__(self, op: Builder) -> None:
        self.op, self.forward = op, frozenset(op.graph)
        self._computed: dict[Any, Any] = {}
        for node in op.graph:
            key = expression(node.op_type, node.inputs, node.domain, len(node.outputs), node.attributes)
            if key is not None:
                self._computed.setdefault(key, node.outputs[0] if len(node.outputs) == 1 else tuple(node.outputs))

    def add(
        self,
        write: Callable[..., Any],
        op_type: str,
        inputs: Sequence[Value | None],
        count: int,
        domain: str,
        attributes: dict[str, Any],
    ) -> Any:
        """Return the values of a new node, which `write` writes, or simpler ones."""
        simpler = simplified(self, op_type, inputs) if count == 1 else None
        if simpler is not None:
            return simpler
        converted = {a.name: a for a in ir.convenience.convert_attributes(attributes)}
        key = expression(op_type, inputs, domain, count, converted)
        if key is not None and key in self._computed:
            return self._computed[key]
        result = write(op_type, inputs, count, domain, converted)
        if key is not None:
            self._computed[key] = result
        return result

    def sum_of_rows(self, x: Value, keepdims: bool) -> Value | None:
        """Return Σ over the rows of a float matrix as ones · x, several times faster; None for other values."""
        shape, fast = x.shape, (ir.DataType.FLOAT, ir.DataType.DOUBLE)
        if shape is None or shape.rank() != 2 or x.dtype not in fast or shape[1] == 1:
            return None
        ones = self._ones(x)
        if keepdims:
            ones = self.op.Reshape(ones, [1, -1])
            ones.shape = ir.Shape([1, shape[0]])
        total: Value = self.op.MatMul(ones, x)
        return total

    def _ones(self, x: Value) -> Value:
        assert x.shape is not None and x.dtype is not None
        if isinstance(x.shape[0], int):
            return self.op.const(np.ones(x.shape[0], x.dtype.numpy()))
        key = ("rows", x.shape[0].value, x.dtype)
        if x.shape[0].value is None or key not in self._computed:
            unit = ir.tensor(np.ones(1, x.dtype.numpy()))
            self._computed[key] = self.op.ConstantOfShape(self.op.Shape(x, start=0, end=1), value=unit)
            self._computed[key].type = x.type
        return self._computed[key]

    @staticmethod
    def prepare(model: ir.Model) -> None:
        """Simplify a model before its backward pass, in place."""
        without_identities(model.graph)
        merge_repeated(model)


def without_identities(graph: Graph) -> None:
    """Remove Identity nodes and casts to a value's own type, except those that name a graph's output.

    A subgraph must compute its outputs.
    """
    for node in list(graph.all_nodes()):
        if node.domain or node.op_type not in ("Identity", "Cast"):
            continue
        x, y = node.inputs[0], node.outputs[0]
        assert x is not None and node.graph is not None
        same = node.op_type == "Identity" or x.dtype == node.attributes["to"].as_int()
        if same and not y.is_graph_output():
            x.type, x.shape = x.type or y.type, x.shape or y.shape
            ir.convenience.replace_all_uses_with(y, x)
            node.graph.remove(node, safe=True)


def merge_repeated(model: ir.Model) -> None:
    """Compute equal expressions once, except for random operators: each node draws its own numbers."""
    drawing = [node for node in model.graph.all_nodes() if node.op_type in RANDOM]
    for number, node in enumerate(drawing):
        node.attributes["ortpipe.draw"] = ir.AttrInt64("ortpipe.draw", number)
    CommonSubexpressionEliminationPass()(model)
    for node in drawing:
        del node.attributes["ortpipe.draw"]


def scalar_of(value: Value) -> float | None:
    """Return the number if a value is a constant scalar."""
    tensor = query.tensor(value)
    if tensor is None or tensor.size != 1 or tensor.shape.rank() or value.is_graph_input():
        return None
    return float(tensor.numpy()) if value.producer() is not None else None


def simplified(by: Simplifier, op_type: str, inputs: Sequence[Value | None]) -> Value | None:
    """Return a simpler value: signs move outwards, where they cancel or turn a sum into a difference; scalars merge."""
    if op_type not in ("Mul", "Add", "Neg") or any(x is None for x in inputs):
        return None
    values = [x for x in inputs if x is not None]
    if op_type == "Neg":
        return _negated(by, values[0])
    if len(values) == 2:
        return (_added if op_type == "Add" else _scaled)(by, *values)
    return None


def _added(by: Simplifier, a: Value, b: Value) -> Value | None:
    """Rewrite x + (−y) as x − y, and (−x) + (−y) as −(x + y)."""
    signs = [_made_here(by, x, "Neg") for x in (a, b)]
    if signs[0] is not None and signs[1] is not None:
        return by.op.Neg(by.op.Add(signs[0].inputs[0], signs[1].inputs[0]))
    for x, sign in ((a, signs[1]), (b, signs[0])):
        if sign is not None:
            return by.op.Sub(x, sign.inputs[0])
    return None


def _negated(by: Simplifier, x: Value) -> Value | None:
    """Rewrite −number as a number, and −(−x) as x."""
    number, node = scalar_of(x), x.producer()
    if number is not None:
        return by.op.like(-number, x)
    return node.inputs[0] if node is not None and node.op_type == "Neg" else None


def _scaled(by: Simplifier, a: Value, b: Value) -> Value | None:
    """Rewrite x·1 as x, x·(−1) as −x, (−x)·s as −(x·s) unless x is a scalar (its sign is free); merge scalars."""
    for x, s in ((a, b), (b, a)):
        number, sign = scalar_of(s), _made_here(by, x, "Neg")
        if number == 1:
            return x
        if number == -1:
            return by.op.Neg(x)
        if sign is not None and sign.inputs[0] is not None and not is_scalar(x):
            inner = sign.inputs[0]
            return by.op.Neg(by.op.Mul(inner, s)) if number is None else by.op.Mul(inner, by.op.like(-number, x))
        joined = _joined_with(by, x, s) if is_scalar(s) else None
        if joined is not None:
            return joined
    return None


def _joined_with(by: Simplifier, x: Value, s: Value) -> Value | None:
    """Merge s into a scalar factor of x: (y·t)·s = y·(t·s), and (number/y)·s = (number·s)/y."""
    number, factor = scalar_of(s), scalar_of(x)
    if number is not None and factor is not None:
        return by.op.like(number * factor, x)
    quotient = _made_here(by, x, "Div")
    top = quotient.inputs[0] if quotient is not None else None
    if quotient is not None and top is not None and number is not None and scalar_of(top) is not None:
        return by.op.Div(by.op.Mul(top, s), quotient.inputs[1])
    product = _made_here(by, x, "Mul")
    if product is None or (is_scalar(x) and number is None):
        return None
    first, second = product.inputs
    assert first is not None and second is not None
    for y, t in ((first, second), (second, first)):
        if is_scalar(t) and (scalar_of(t) is not None or not is_scalar(x)):
            return by.op.Mul(y, by.op.Mul(t, s))
    if x.uses():
        return None  # the unscaled value is used elsewhere
    for y, t in ((first, second), (second, first)):
        deeper = _joined_with(by, t, s) if not is_scalar(t) else None
        if deeper is not None:
            return by.op.Mul(y, deeper)
    return None


def _made_here(by: Simplifier, value: Value, op_type: str) -> Node | None:
    """Return the node that computes a value if it has this operator and belongs to the gradient, not the forward."""
    node = value.producer()
    return node if node is not None and node.op_type == op_type and node not in by.forward else None


def expression(
    op_type: str, inputs: Sequence[Value | None], domain: str, count: int, attributes: Mapping[str, ir.Attr]
) -> Any:
    """Return a key that equal expressions share; None for random operators and those with subgraphs."""
    if op_type in RANDOM or any(
        a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in attributes.values()
    ):
        return None
    shown = []
    for name in sorted(attributes):
        value = attributes[name].value
        if attributes[name].type == ir.AttributeType.TENSOR:
            if value.dtype == ir.DataType.STRING:
                return None
            value = (value.dtype, tuple(value.shape.numpy()), value.tobytes())
        shown.append((name, tuple(value) if isinstance(value, list | tuple) else value))
    return (domain, op_type, count, tuple(id(x) if x is not None else 0 for x in inputs), tuple(shown))
