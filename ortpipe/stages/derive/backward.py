"""The backward walk, and the builder that its rules write with."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import DeriveError
from ortpipe.graph import query
from ortpipe.graph.builder import Builder, Names

Gradients = Sequence[ir.Value | None]
BROADCASTING = {  # their rules hand back gradients of the output's shape, which stand for all of it
    *("Add", "Clip", "Div", "Expand", "Max", "Mean", "Min", "Mod", "Mul", "PRelu", "Pow", "Sub", "Sum", "Where"),
}


def gradients(
    op: Backward, seeds: Iterable[tuple[ir.Value, ir.Value]], targets: Iterable[ir.Value]
) -> dict[ir.Value, ir.Value]:
    """Return Σ seedᵀ · ∂output/∂target over (output, seed), for every target that an output depends on.

    A value's gradient is the sum over its uses of what each user's rule hands back (reverse accumulation). A rule
    answers for `operands(node)`: the inputs, then what the node's subgraphs read from around it. Targets may be values
    from around the graph.
    """
    targets = list(targets)
    op.active = active(op.forward, targets)
    received: dict[ir.Value, list[ir.Value]] = defaultdict(list)
    for output, seed in seeds:
        received[output].append(seed)
    for node in reversed(op.forward):
        arrived = [op.total(received[y], y) if received.get(y) else None for y in node.outputs]
        if not any(arrived) or not any(x in op.active for x in operands(node) if x is not None):
            continue
        for x, dx in zip(operands(node), _rule(node, op.active)(op, node, *arrived), strict=False):
            if x is not None and dx is not None and x in op.active:
                y = node.outputs[0] if node.op_type in BROADCASTING else None
                received[x].append(op.unbroadcast(dx, x, y))
    return {t: op.full(op.total(received[t], t), t) for t in targets if received.get(t)}


def ranked(x: ir.Value) -> ir.Shape:
    """Return a value's shape, for the rules that count its axes.

    Raises:
        DeriveError: shape inference does not know it.
    """
    if x.shape is None:
        node = x.producer()
        raise DeriveError(
            "The gradient of most operators needs values of known rank.",
            got=f"{x.name!r}, which {node.op_type if node is not None else 'the model'} gives, of unknown rank",
            fix="Give the graph's inputs shapes, or the value a value_info; or freeze the parameters in front of it.",
        )
    return x.shape


def operands(node: ir.Node) -> tuple[ir.Value | None, ...]:
    """Return what a node reads: its inputs, then what its subgraphs capture."""
    return (*node.inputs, *query.captured(node))


def active(nodes: Iterable[ir.Node], targets: Iterable[ir.Value]) -> set[ir.Value]:
    """Return the float values that depend on a target: integers and booleans stop the gradient."""
    found = set(targets)
    for node in nodes:
        if any(x in found for x in operands(node) if x is not None):
            found.update(y for y in node.outputs if y.dtype is None or y.dtype in query.FLOATS)
    return found


def _rule(node: ir.Node, active: set[ir.Value]) -> Any:
    from ortpipe.stages.derive.rules import RULES

    rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if rule is None:
        cut = next(x.name for x in operands(node) if x is not None and x in active)
        raise DeriveError(
            "Every operator between the trained parameters and the loss needs a gradient.",
            got=f"{node.op_type} at node {node.name or node.outputs[0].name!r}, which has no rule and cuts off {cut!r}",
            fix="Freeze the parameters in front of it (derive.frozen), or add a rule to its family in "
            "ortpipe/stages/derive/rules/.",
        )
    return rule


class Backward(Builder):
    """A builder for gradients: computes nothing twice, keeps scalars scalar, knows shapes.

    Every call with the same operator, inputs and attributes gives the same value, forward nodes included. A gradient
    may have a smaller shape that broadcasts to its value's shape (the gradient of a sum stays a scalar) until a rule
    asks for all of it with `full`.
    """

    def __init__(self, graph: ir.Graph, prefix: str = "grad", names: Names | None = None) -> None:
        super().__init__(graph, prefix, names=names)
        self.forward = list(graph)
        self.opset = graph.opset_imports.get("", 21)
        self.active: set[ir.Value] = set()  # the values that depend on a target, once the walk has begun
        self._own = set(self.forward)
        self._known: dict[Any, Any] = {}
        for node in self.forward:
            key = _key(node.op_type, node.inputs, node.domain, len(node.outputs), node.attributes)
            if key is not None:
                self._known.setdefault(key, node.outputs[0] if len(node.outputs) == 1 else tuple(node.outputs))

    def inside(self, graph: ir.Graph) -> Backward:
        """Return a builder for a subgraph, whose names collide with nothing around it."""
        graph.opset_imports.update(self.graph.opset_imports)
        return Backward(graph, self._prefix, self._names)

    def _add(
        self, op_type: str, inputs: Sequence[ir.Value | None], count: int, domain: str, attributes: dict[str, Any]
    ) -> Any:
        simpler = _simplified(self, op_type, inputs) if count == 1 else None
        if simpler is not None:
            return simpler
        converted = {a.name: a for a in ir.convenience.convert_attributes(attributes)}
        key = _key(op_type, inputs, domain, count, converted)
        if key is None or key not in self._known:
            made = super()._add(op_type, inputs, count, domain, attributes)
            _infer(op_type, inputs, made, converted)
            if key is None:
                return made
            self._known[key] = made
        return self._known[key]

    def total(self, received: Sequence[ir.Value], like: ir.Value) -> ir.Value:
        """Return the sum of gradients of one value; equal ones become a product."""
        counts: dict[ir.Value, int] = {}
        for gradient in received:
            counts[gradient] = counts.get(gradient, 0) + 1
        terms = [g if n == 1 else self.Mul(g, self.like(n, like)) for g, n in counts.items()]
        total = terms[0]
        for term in terms[1:]:
            total = self.Add(total, term)
        return total

    def unbroadcast(self, gradient: ir.Value, x: ir.Value, y: ir.Value | None = None) -> ir.Value:
        """Sum a gradient over the axes along which `x` was broadcast; the result broadcasts to x's shape.

        Where `y` is given, the gradient stands for all of y's shape: an axis that it has as 1, y as n and x as 1
        counts n times.
        """
        gradient.type = gradient.type or x.type
        if gradient.shape is None and y is None:
            gradient.shape = x.shape
        if gradient.shape is None or x.shape is None or (y is not None and y.shape is None):
            return self._unbroadcast_dynamic(gradient, x, y)
        found = _joined(gradient.shape, x.shape, y.shape if y is not None else None)
        if found is None:
            return self._unbroadcast_dynamic(gradient, x, y)
        summed, repeated = found
        for axis in repeated:
            assert y is not None
            gradient = self.Mul(gradient, self.cast(self.dim(y, axis), gradient))
        extra = gradient.shape.rank() - x.shape.rank() if gradient.shape is not None else 0
        if summed == list(range(extra)):
            return self.sum(gradient, summed) if summed else gradient
        made = self.sum(gradient, summed, keepdims=True) if summed else gradient
        return self.reshape_like(made, x) if extra > 0 else made

    def _unbroadcast_dynamic(self, gradient: ir.Value, x: ir.Value, y: ir.Value | None) -> ir.Value:
        """Sum over the axes where x's shape, padded with ones in front, is 1 and the gradient's is not."""
        if y is None:
            y, gradient = x, self.Expand(gradient, self.Shape(x))
        else:
            gradient = self.Expand(gradient, self.Shape(y))
        own, shape = self.Shape(gradient), self.Shape(x)
        missing = self.Sub(self.Shape(own), self.Shape(shape))
        padded = self.Concat(self.Expand(self.ints([1]), missing), shape, axis=0)
        joined = self.And(self.Equal(padded, self.ints([1])), self.Not(self.Equal(own, self.ints([1]))))
        axes = self.Reshape(self.NonZero(joined), self.ints([-1]))
        made = self.Reshape(self.ReduceSum(gradient, axes, keepdims=1, noop_with_empty_axes=1), shape)
        made.type, made.shape = x.type, x.shape
        return made

    def constant(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return what a value always is: None for an input, which a caller may set, and for what is trained."""
        if value is None or value.is_graph_input() or value in self.active:
            return None
        return ir.convenience.get_const_tensor(value)

    def dim(self, x: ir.Value, axis: int) -> ir.Value:
        """Return one dimension of x as an int64 scalar; a constant where it is static."""
        known = x.shape[axis] if x.shape is not None else None
        if isinstance(known, int):
            return self.const(np.int64(known))
        made = self.Gather(self.Shape(x), self.const(np.int64(axis)), axis=0)
        made.type, made.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
        return made

    def full(self, gradient: ir.Value, y: ir.Value) -> ir.Value:
        """Return a gradient with all of its value's shape."""
        if gradient.shape is not None and y.shape is not None and _same(gradient.shape, y.shape):
            return gradient
        made = self.Expand(gradient, self.shape(y))
        made.type, made.shape = y.type, y.shape
        return made

    def sum(self, x: ir.Value, axes: Sequence[int], *, keepdims: bool = False) -> ir.Value:
        """Return Σ over axes; over the rows of a float matrix as ones · x, which is several times faster."""
        shape = x.shape
        dims = [d for i, d in enumerate(shape) if i not in axes] if shape is not None else None
        if (
            shape is not None
            and shape.rank() == 2
            and list(axes) == [0]
            and x.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
            and shape[1] != 1
        ):
            ones = self._ones(x)
            ones.type = x.type
            made = self.MatMul(self.reshape(ones, [1, -1], [1, shape[0]]) if keepdims else ones, x)
            made.type, made.shape = x.type, ir.Shape([1, shape[1]] if keepdims else dims or [])
            return made
        made = self.ReduceSum(x, self.ints(list(axes)), keepdims=int(keepdims))
        made.type = x.type
        if shape is not None:
            made.shape = ir.Shape([1 if i in axes else d for i, d in enumerate(shape)] if keepdims else dims or [])
        return made

    def averaged(self, value: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        """Return value / n, where each element of y joins n of x; n itself may be too large for a half's range."""
        dtype = x.dtype
        assert dtype is not None
        half = dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
        joined = _quotient(x.shape, y.shape)
        if joined is not None:
            return self.Mul(value, self.like(1 / max(joined, 1), x)) if half else self.Div(value, self.like(joined, x))
        wide = ir.TensorType(ir.DataType.FLOAT) if half else x.type
        whole, parts = (self.cast(self.Size(v), ir.Value(type=wide)) for v in (x, y))
        if half:
            return self.Mul(value, self.cast(self.Div(parts, whole), x))
        scalar = y.shape is not None and y.shape.rank() == 0
        return self.Div(value, whole if scalar else self.Div(whole, parts))

    def scatter_add(self, zeros: ir.Value, places: ir.Value, values: ir.Value, axis: int) -> ir.Value:
        """Return zeros with values added along an axis; halves add up in float32, and so have a kernel."""
        if zeros.dtype not in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
            return self.ScatterElements(zeros, places, values, axis=axis, reduction="add")
        zeros_32, values_32 = (self.Cast(v, to=ir.DataType.FLOAT) for v in (zeros, values))
        return self.cast(self.ScatterElements(zeros_32, places, values_32, axis=axis, reduction="add"), zeros)

    def _ones(self, x: ir.Value) -> ir.Value:
        assert x.shape is not None and x.dtype is not None
        if isinstance(x.shape[0], int):
            return self.const(np.ones(x.shape[0], x.dtype.numpy()))
        key = ("rows", x.shape[0].value, x.dtype)
        if x.shape[0].value is None or key not in self._known:
            one = ir.tensor(np.ones(1, x.dtype.numpy()))
            rows = self.Shape(x, start=0, end=1) if self.opset >= 15 else self.Gather(self.Shape(x), self.ints([0]))
            self._known[key] = self.ConstantOfShape(rows, value=one)
        return self._known[key]

    def fresh(self, wanted: str) -> str:
        """Return a name that the graph does not use yet."""
        return self._names.fresh(wanted)

    def ints(self, values: Sequence[int]) -> ir.Value:
        """Return a constant int64 vector."""
        return self.const(np.array(values, np.int64))

    def shape(self, x: ir.Value) -> ir.Value:
        """Return a value's shape as a tensor: a constant where it is static."""
        if x.shape is not None and all(isinstance(d, int) for d in x.shape):
            return self.ints([int(d) for d in x.shape])  # type: ignore[arg-type]
        return self.Shape(x)

    def reshape(self, x: ir.Value, to: Sequence[int], shape: Sequence[Any] | None = None) -> ir.Value:
        """Return x with the constant shape `to` (which may hold one −1)."""
        made = self.Reshape(x, self.ints(to))
        made.type = x.type
        made.shape = ir.Shape(list(shape if shape is not None else to)) if shape is not None or -1 not in to else None
        return made

    def reshape_like(self, gradient: ir.Value, x: ir.Value) -> ir.Value:
        """Return a gradient with x's shape; one unknown dimension is left to the runtime."""
        if gradient.shape is not None and x.shape is not None and _same(gradient.shape, x.shape):
            return gradient
        if x.shape is not None and gradient.shape is not None and gradient.shape.rank() > x.shape.rank() > 0:
            extra = gradient.shape.rank() - x.shape.rank()
            front, rest = gradient.shape[:extra], ir.Shape(gradient.shape[extra:])
            if all(d == 1 for d in front) and all(d == 1 or _equal(d, w) for d, w in zip(rest, x.shape, strict=True)):
                made = self.Squeeze(gradient, self.ints(list(range(extra))))
                made.type, made.shape = x.type, rest
                return made
        if x.shape is not None and 0 in x.shape:
            return self.zeros(x)
        dims = list(x.shape) if x.shape is not None else [None, None]
        unknown = [i for i, d in enumerate(dims) if not isinstance(d, int)]
        if len(unknown) <= 1:
            made = self.Reshape(gradient, self.ints([d if isinstance(d, int) else -1 for d in dims]))
        else:
            made = self.Reshape(gradient, self.Shape(x), **({"allowzero": 1} if self.opset >= 14 else {}))
        made.type, made.shape = x.type, x.shape
        return made

    def zeros(self, x: ir.Value) -> ir.Value:
        """Return zeros of a value's shape and type."""
        return self.full(self.like(0, x), x)


def scalar_of(value: ir.Value) -> float | None:
    """Return the number that a value is, if it is a constant scalar."""
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size != 1 or tensor.shape.rank() or value.is_graph_input():
        return None
    return float(tensor.numpy()) if value.producer() is not None else None


def _simplified(op: Backward, op_type: str, inputs: Sequence[ir.Value | None]) -> ir.Value | None:
    """Return a simpler value: signs go outwards, where they cancel or make a sum a difference; scalars are gathered."""
    if op_type not in ("Mul", "Add", "Neg") or any(x is None for x in inputs):
        return None
    given = [x for x in inputs if x is not None]
    if op_type == "Neg":
        return _negated(op, given[0])
    if len(given) == 2:
        return (_added if op_type == "Add" else _scaled)(op, *given)
    return None


def _added(op: Backward, a: ir.Value, b: ir.Value) -> ir.Value | None:
    """Return x + (−y) as x − y, and (−x) + (−y) as −(x + y)."""
    signs = [_made_here(op, x, "Neg") for x in (a, b)]
    if signs[0] is not None and signs[1] is not None:
        return op.Neg(op.Add(signs[0].inputs[0], signs[1].inputs[0]))
    for x, sign in ((a, signs[1]), (b, signs[0])):
        if sign is not None:
            return op.Sub(x, sign.inputs[0])
    return None


def _negated(op: Backward, x: ir.Value) -> ir.Value | None:
    """Return −number, and −(−x) as x."""
    number, node = scalar_of(x), x.producer()
    if number is not None:
        return op.like(-number, x)
    return node.inputs[0] if node is not None and node.op_type == "Neg" else None


def _scaled(op: Backward, a: ir.Value, b: ir.Value) -> ir.Value | None:
    """Return x·1 as x, x·(−1) as −x, (−x)·s as −(x·s) (but for a scalar x: its sign costs nothing), joined scalars."""
    for x, s in ((a, b), (b, a)):
        number, sign = scalar_of(s), _made_here(op, x, "Neg")
        if number == 1:
            return x
        if number == -1:
            return op.Neg(x)
        if sign is not None and sign.inputs[0] is not None and not _is_scalar(x):
            inner = sign.inputs[0]
            return op.Neg(op.Mul(inner, s)) if number is None else op.Mul(inner, op.like(-number, x))
        joined = _joined_with(op, x, s) if _is_scalar(s) else None
        if joined is not None:
            return joined
    return None


def _joined_with(op: Backward, x: ir.Value, s: ir.Value) -> ir.Value | None:
    """Return x·s where x has a scalar factor that takes s: (y·t)·s = y·(t·s), and (number/y)·s = (number·s)/y."""
    number, other = scalar_of(s), scalar_of(x)
    if number is not None and other is not None:
        return op.like(number * other, x)
    quotient = _made_here(op, x, "Div")
    top = quotient.inputs[0] if quotient is not None else None
    if quotient is not None and top is not None and number is not None and scalar_of(top) is not None:
        return op.Div(op.Mul(top, s), quotient.inputs[1])
    product = _made_here(op, x, "Mul")
    if product is None or (_is_scalar(x) and number is None):
        return None
    left, right = product.inputs
    assert left is not None and right is not None
    for y, t in ((left, right), (right, left)):
        if _is_scalar(t) and (scalar_of(t) is not None or not _is_scalar(x)):
            return op.Mul(y, op.Mul(t, s))
    if x.uses():
        return None  # it is needed as it is, too
    for y, t in ((left, right), (right, left)):
        deeper = _joined_with(op, t, s) if not _is_scalar(t) else None
        if deeper is not None:
            return op.Mul(y, deeper)
    return None


def _made_here(op: Backward, value: ir.Value, op_type: str) -> ir.Node | None:
    """Return the node that gives a value if it is such an operator of the gradient, not of the forward graph."""
    node = value.producer()
    return node if node is not None and node.op_type == op_type and node not in op._own else None


def _is_scalar(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.rank() == 0


def _key(
    op_type: str, inputs: Sequence[ir.Value | None], domain: str, count: int, attributes: Mapping[str, ir.Attr]
) -> Any:
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in attributes.values()):
        return None
    if op_type.startswith("Random") or op_type in ("Dropout", "Bernoulli", "Multinomial"):
        return None
    shown = []
    for name in sorted(attributes):
        value = attributes[name].value
        if isinstance(value, ir.TensorProtocol):
            if value.dtype == ir.DataType.STRING:
                return None
            value = (value.dtype, tuple(value.shape.numpy()), value.tobytes())
        shown.append((name, tuple(value) if isinstance(value, list | tuple) else value))
    return (domain, op_type, count, tuple(id(x) if x is not None else 0 for x in inputs), tuple(shown))


ELEMENTWISE = {
    *("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mod", "Where", "PRelu"),
    *("Neg", "Abs", "Exp", "Log", "Sqrt", "Reciprocal", "Sign", "Tanh", "Sigmoid", "Erf", "Floor", "Identity"),
    *("Sin", "Cos", "Tan", "Sinh", "Cosh", "Relu", "Clip", "Softplus", "Softmax", "CumSum", "HardSigmoid"),
}
BOOLEAN = {"Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Not", "IsNaN"}
SAME_TYPE = {  # of another shape than their first input, but of its type
    *("Concat", "Expand", "Gather", "GatherElements", "GatherND", "Gemm", "MatMul", "Pad", "Reshape", "Slice"),
    *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ScatterElements", "ScatterND"),
    *("Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze"),
}


def _infer(op_type: str, inputs: Sequence[ir.Value | None], made: Any, attributes: Mapping[str, ir.Attr]) -> None:
    """Note type and shape of what elementwise operators give, by broadcasting."""
    if not isinstance(made, ir.Value) or made.shape is not None:
        return
    given = [x for x in inputs if x is not None]
    if op_type == "Constant":
        tensor = ir.convenience.get_const_tensor(made)
        if tensor is not None:
            made.type, made.shape = ir.TensorType(tensor.dtype), ir.Shape(list(tensor.shape))  # type: ignore[arg-type]
        return
    if op_type in ("Softmax", "CumSum", "Clip"):
        given = given[:1]
    if op_type in BOOLEAN or op_type in ELEMENTWISE:
        made.type = ir.TensorType(ir.DataType.BOOL) if op_type in BOOLEAN else given[-1].type
        made.shape = broadcast([x.shape for x in given])
    elif op_type in SAME_TYPE:
        made.type = given[0].type
    elif op_type == "Cast":
        made.shape, made.type = given[0].shape, ir.TensorType(ir.DataType(attributes["to"].as_int()))
    elif op_type in ("Shape", "Size"):
        made.type = ir.TensorType(ir.DataType.INT64)
        if op_type == "Size":
            made.shape = ir.Shape([])


def broadcast(shapes: Sequence[ir.Shape | None]) -> ir.Shape | None:
    """Return the shape of a broadcast, None where its rank is not known; a dimension may be unknown."""
    known = [list(s) for s in shapes if s is not None]
    if len(known) < len(shapes):
        return None
    rank = max((len(s) for s in known), default=0)
    return ir.Shape([wide([s[a - rank + len(s)] for s in known if a >= rank - len(s)]) for a in range(rank)])


def wide(dims: Sequence[Any]) -> Any:
    """Return the dimension that these broadcast to, None where it is not known."""
    broad = [d for d in dims if d != 1]
    numbers = [d for d in broad if isinstance(d, int)]
    if not broad or numbers:
        return numbers[0] if numbers else 1
    return broad[0] if all(_equal(d, broad[0]) for d in broad) else None


def _joined(gradient: ir.Shape, x: ir.Shape, y: ir.Shape | None) -> tuple[list[int], list[int]] | None:
    """Return the gradient's axes to sum over and y's axes that count many times; None where names hide the sizes."""
    summed, repeated = [], []
    ranks = [s.rank() if s is not None else 0 for s in (gradient, x, y)]
    for back in range(1, max(ranks) + 1):
        h, w, v = (s[-back] if s is not None and back <= s.rank() else 1 for s in (gradient, x, y))
        if y is None:
            v = w if h == 1 else h
        if v == 1 or _equal(w, v) or (isinstance(w, int) and w != 1):
            continue
        if w != 1 or not (isinstance(h, int) or _equal(h, v) or y is None):
            return None
        if h == 1:
            repeated.append(ranks[2] - back)
        else:
            summed.append(ranks[0] - back)
    return sorted(summed), sorted(repeated)


def _quotient(x: ir.Shape | None, y: ir.Shape | None) -> int | None:
    """Return |x| / |y| where the dimensions that they do not share are static."""
    if x is None or y is None:
        return None
    rest = list(x)
    for d in y:
        if d == 1 and 1 not in rest:
            continue
        if d not in rest or not (isinstance(d, int) or d.value is not None):
            return None
        rest.remove(d)
    return math.prod(d for d in rest if isinstance(d, int)) if all(isinstance(d, int) for d in rest) else None


def _equal(a: Any, b: Any) -> bool:
    """Say whether two dimensions are surely the same: two that are unknown are not."""
    return a == b and (isinstance(a, int) or a.value is not None)


def _same(a: ir.Shape, b: ir.Shape) -> bool:
    return a.rank() == b.rank() and all(_equal(x, y) for x, y in zip(a, b, strict=True))
