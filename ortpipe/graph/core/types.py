"""Infer types and shapes while a graph is written."""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ortpipe.graph.core.operators import having

OPSET = 21  # the newest opset that onnxruntime-training 1.19.2 runs
IR_VERSION = 10  # the newest IR version that it loads
LIKE_FIRST, PREDICATES = having("unary", "like_first"), having("predicate")
BROADCASTING, FIRST_TYPE = having("broadcasts"), having("first_type", "reduces")
SHAPE = having("shape")


def infer(node: ir.Node) -> None:
    """Set type and shape of the outputs of a node of ONNX's domain, as far as its inputs determine them."""
    op_type, y, inputs = node.op_type, node.outputs[0], [x for x in node.inputs if x is not None]
    if op_type == "Split":
        for part in node.outputs:
            part.type = inputs[0].type
    elif len(node.outputs) > 1:
        return
    elif op_type == "Constant":
        tensor = node.attributes["value"].value
        y.type, y.shape = ir.TensorType(tensor.dtype), ir.Shape(list(tensor.shape))
    elif op_type in LIKE_FIRST or op_type == "Clip":
        y.type, y.shape = inputs[0].type, inputs[0].shape
    elif op_type in PREDICATES:
        y.type, y.shape = ir.TensorType(ir.DataType.BOOL), broadcast([x.shape for x in inputs])
    elif op_type in BROADCASTING:
        y.type, y.shape = inputs[0 if op_type == "Pow" else -1].type, broadcast([x.shape for x in inputs])
    elif op_type in FIRST_TYPE or op_type == "Range":
        y.type = inputs[0].type
    elif op_type == "Cast":
        y.type, y.shape = ir.TensorType(ir.DataType(node.attributes["to"].as_int())), inputs[0].shape
    elif op_type in SHAPE:
        y.type = ir.TensorType(ir.DataType.INT64)
        y.shape = ir.Shape([]) if op_type == "Size" else None


def is_scalar(value: ir.Value) -> bool:
    """Return whether a value is known to be a scalar."""
    return value.shape is not None and value.shape.rank() == 0


def broadcast(shapes: Sequence[ir.Shape | None]) -> ir.Shape | None:
    """Return the shape of a broadcast, None if its rank is unknown; dimensions may be unknown."""
    dims = [list(s) for s in shapes if s is not None]
    if len(dims) < len(shapes):
        return None
    rank = max((len(s) for s in dims), default=0)
    return ir.Shape([wide([s[a - rank + len(s)] for s in dims if a >= rank - len(s)]) for a in range(rank)])


def wide(dims: Sequence[Any]) -> Any:
    """Return the dimension that these broadcast to, None if it is unknown."""
    broad = [d for d in dims if d != 1]
    numbers = [d for d in broad if isinstance(d, int)]
    if not broad or numbers:
        return numbers[0] if numbers else 1
    return broad[0] if all(equal(d, broad[0]) for d in broad) else None


def equal(a: Any, b: Any) -> bool:
    """Return whether two dimensions are known to be equal; two unknown ones are not."""
    return a == b and (isinstance(a, int) or a.value is not None)


def same(a: ir.Shape, b: ir.Shape) -> bool:
    """Return whether two shapes are known to be equal."""
    return a.rank() == b.rank() and all(equal(x, y) for x, y in zip(a, b, strict=True))
