"""Weights quantized in blocks to a few bits, which onnxruntime packs into bytes, as float parameters."""

import numpy as np
import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.stages.convert.dialects.forms import rank_of, unsupported
from ortpipe.stages.convert.dialects.integers import Integers

BITS = (2, 4, 8)


def mat_mul(integers: Integers, op: Builder, node: Node) -> list[Value]:
    """MatMulNBits: x · w + bias, w [K, N] in packed rows of its transpose; x is not rounded."""
    x, packed, scales, zero, order, bias = (*node.inputs, None, None, None)[:6]
    assert packed is not None and scales is not None
    get_int = node.attributes.get_int
    bits, block, count, width = get_int("bits", 4), get_int("block_size"), get_int("K"), get_int("N")
    groups = query.constant(order)
    if bits not in BITS or get_int("weight_prepacked", 0) != 0:
        raise unsupported(node, f"bits={bits}, or weight_prepacked")
    if order is not None and (groups is None or not np.array_equal(groups.ravel(), np.arange(groups.size) // block)):
        raise unsupported(node, "rows of weights in another order (g_idx)")
    y = op.MatMul(x, integers.from_blocks(packed, (width, -1), (bits, count), scales, zero, ["transpose"]))
    return [y if bias is None else op.Add(y, bias)]


def gather(integers: Integers, op: Builder, node: Node) -> list[Value]:
    """GatherBlockQuantized: rows of a table by index."""
    table, places, scales, zero = (*node.inputs, None)[:4]
    assert table is not None and scales is not None
    get_int = node.attributes.get_int
    axis, block, quantized_axis = get_int("gather_axis", 0), get_int("block_size", 128), get_int("quantize_axis", 1)
    if table.dtype is not None and table.dtype.name == "UINT8":
        bits, shape = get_int("bits", 4), query.array(table).shape
        if len(shape) != 2 or axis % 2 or quantized_axis % 2 != 1 or bits not in BITS:
            raise unsupported(node, "a table of bytes other than a matrix in blocks of its rows")
        floats = integers.from_blocks(table, shape, (bits, shape[1] * 8 // bits), scales, zero)
    elif rank_of(scales) and table.is_initializer():
        node.attributes["block_size"] = ir.AttrInt64("block_size", block)
        floats = integers.weight(op, table, scales, zero, quantized_axis, node)
    else:
        raise unsupported(node, "a table that is no initializer")
    return [op.Gather(floats, places, axis=axis)]
