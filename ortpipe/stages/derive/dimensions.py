"""What is known of types and shapes while a gradient is written."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir import Value

from ortpipe.errors import DeriveError
from ortpipe.graph import operators


def infer(op_type: str, inputs: Sequence[Value | None], y: Value, attributes: Mapping[str, ir.Attr]) -> None:
    """Note type and shape of an operator's output, as far as its inputs say them."""
    given = [x for x in inputs if x is not None]
    if op_type == "Constant":
        tensor = ir.convenience.get_const_tensor(y)
        if tensor is not None:
            y.type, y.shape = ir.TensorType(tensor.dtype), ir.Shape(list(tensor.shape))  # type: ignore[arg-type]
    elif op_type in operators.UNARY or op_type in operators.LIKE_FIRST or op_type == "Clip":
        y.type, y.shape = given[0].type, given[0].shape
    elif op_type in operators.PREDICATES:
        y.type, y.shape = ir.TensorType(ir.DataType.BOOL), broadcast([x.shape for x in given])
    elif op_type in operators.BROADCASTING:
        y.type, y.shape = given[0 if op_type == "Pow" else -1].type, broadcast([x.shape for x in given])
    elif op_type in operators.OF_FIRST_TYPE:
        y.type = given[0].type
    elif op_type == "Cast":
        y.type, y.shape = ir.TensorType(ir.DataType(attributes["to"].as_int())), given[0].shape
    elif op_type in ("Shape", "Size"):
        y.type = ir.TensorType(ir.DataType.INT64)
        y.shape = ir.Shape([]) if op_type == "Size" else None


def ranked(x: Value) -> ir.Shape:
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
    return broad[0] if all(equal(d, broad[0]) for d in broad) else None


def joined_axes(gradient: ir.Shape, x: ir.Shape, y: ir.Shape | None) -> tuple[list[int], list[int]] | None:
    """Return the gradient's axes to sum over and y's axes that count many times; None where names hide the sizes."""
    summed, repeated = [], []
    ranks = [s.rank() if s is not None else 0 for s in (gradient, x, y)]
    for back in range(1, max(ranks) + 1):
        h, w, v = (s[-back] if s is not None and back <= s.rank() else 1 for s in (gradient, x, y))
        if y is None:
            v = w if h == 1 else h
        if v == 1 or equal(w, v) or (isinstance(w, int) and w != 1):
            continue
        if w != 1 or not (isinstance(h, int) or equal(h, v) or y is None):
            return None
        if h == 1:
            repeated.append(ranks[2] - back)
        else:
            summed.append(ranks[0] - back)
    return sorted(summed), sorted(repeated)


def quotient(x: ir.Shape | None, y: ir.Shape | None) -> int | None:
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


def equal(a: Any, b: Any) -> bool:
    """Say whether two dimensions are surely the same: two that are unknown are not."""
    return a == b and (isinstance(a, int) or a.value is not None)


def same(a: ir.Shape, b: ir.Shape) -> bool:
    """Say whether two shapes are surely the same."""
    return a.rank() == b.rank() and all(equal(x, y) for x, y in zip(a, b, strict=True))
