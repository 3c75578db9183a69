"""A Conv whose pads depend on its input's size as a Pad and a Conv without pads."""

from collections.abc import Sequence

import numpy as np
from onnx_ir import Node, Value

from ortpipe.autodiff.windows import FAR, auto_pad, spatial, unpadded
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.rewrite import Rewrite


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


EXPANSIONS: dict[str, Rewrite] = {"Conv": conv}
