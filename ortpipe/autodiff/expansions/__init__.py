"""The table of operators that are rewritten as other operators before the walk, so that existing rules apply.

An expansion is `expansion(op, node)`: it uses `op` to insert nodes before the node and returns one value per output of
the node (None for an unused output), or None to leave the node unchanged.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx_ir import Node, Value

from ortpipe.autodiff.expansions import loops, recurrent, sampling, sequences
from ortpipe.autodiff.windows import FAR, auto_pad, spatial, unpadded
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Rewrite


def conv(op: Builder, node: Node) -> Sequence[Value] | None:
    """SAME: ⌈size / stride⌉ windows; half of their extent beyond the input is padding on each side."""
    if not auto_pad(node).startswith("SAME"):
        return None
    x, windows = node.inputs[0], unpadded(node)
    if not any(size is None and s > 1 for size, s in zip(spatial(x), windows.strides, strict=True)):
        return None
    sizes = op.Slice(op.Shape(x), [2], [FAR])
    counts = (sizes + op.const(windows.strides - 1)) / op.const(windows.strides)
    total = op.Max((counts - 1) * op.const(windows.strides) + op.const(windows.extents) - sizes, 0)
    half = total / 2
    begin, end = (half, total - half) if auto_pad(node) == "SAME_UPPER" else (total - half, half)
    none = op.const(np.zeros(2, np.int64))
    padded = op.Pad(x, op.Concat(none, begin, none, end, axis=0))
    attributes = {name: value for name, value in node.attributes.items() if name != "auto_pad"}
    return [op.Conv(padded, *node.inputs[1:], **attributes)]


def log(op: Builder, node: Node) -> Sequence[Value] | None:
    """Return log σ(x), or log(1 − σ(x)) = log σ(−x), as (x − |x|)/2 − log(1 + exp(−|x|))."""
    probability = node.inputs[0]
    if (x := _input_of(probability, "Sigmoid")) is not None:
        return [_log_sigmoid(op, x)]
    maker = probability.producer() if probability is not None else None
    if maker is None or maker.op_type != "Sub" or maker.domain or not _is_one(maker.inputs[0]):
        return None
    x = _input_of(maker.inputs[1], "Sigmoid")
    return None if x is None else [_log_sigmoid(op, op.Neg(x))]


def _log_sigmoid(op: Builder, x: Any) -> Value:
    size = op.Abs(x)  # not −softplus(−x): onnxruntime's Softplus of float64 overflows
    return (x - size) * 0.5 - op.Log(op.Exp(op.Neg(size)) + 1)


def _input_of(value: Value | None, op_type: str) -> Value | None:
    node = value.producer() if value is not None else None
    return node.inputs[0] if node is not None and node.op_type == op_type and not node.domain else None


def _is_one(value: Value | None) -> bool:
    tensor = query.tensor(value) if value is not None and not value.is_graph_input() else None
    return tensor is not None and tensor.size == 1 and not tensor.shape.rank() and float(tensor.numpy()) == 1


EXPANSIONS: dict[str, Rewrite] = {
    "ConcatFromSequence": sequences.concat,
    "Conv": conv,
    "GRU": recurrent.recurrent,
    "GridSample": sampling.grid_sample,
    "LSTM": recurrent.recurrent,
    "Log": log,
    "Loop": loops.loop,
    "OptionalGetElement": sequences.get_element,
    "RNN": recurrent.recurrent,
    "RoiAlign": sampling.roi_align,
    "Scan": loops.scan,
    "SequenceAt": sequences.at,
}
