"""What is known of types and shapes while a gradient is written."""

import math

import onnx_ir as ir
from onnx_ir import Value

from ortpipe.errors import DeriveError
from ortpipe.graph.types import equal


def ranked(x: Value) -> ir.Shape:
    """Return a value's shape, for the rules that count its axes; a DeriveError where it is not known."""
    if x.shape is None:
        node = x.producer()
        raise DeriveError(
            "The gradient of most operators needs values of known rank.",
            got=f"{x.name!r}, which {node.op_type if node is not None else 'the model'} gives, of unknown rank",
            fix="Give the graph's inputs shapes, or the value a value_info; or freeze the parameters in front of it.",
        )
    return x.shape


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


def same(a: ir.Shape, b: ir.Shape) -> bool:
    """Say whether two shapes are surely the same."""
    return a.rank() == b.rank() and all(equal(x, y) for x, y in zip(a, b, strict=True))
