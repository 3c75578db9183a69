"""A pass over an epoch: convolutions on blocks of channels (NCHWc), which onnxruntime itself only uses with constants.

onnxruntime reorders constant weights when it loads a model, so its own pass skips weights that training changes.
This pass reorders weights and images in the step: [N, C, H, W] becomes [N, C/B, H, W, B], where B is the number of
channels that fit in a register of the processor; the last block is padded with zeros.
"""

import functools
import math
import platform
from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.autodiff import FAR
from ortpipe.errors import ModelError
from ortpipe.fast.convolutions import as_convolution, find_kernel_gradient, flipped
from ortpipe.fast.epoch import EpochGraph, maker_for_one
from ortpipe.fast.thresholds import THRESHOLDS
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.rewrite import rewrite
from ortpipe.runtime.session import Session

DOMAIN = "com.microsoft.nchwc"
PROCESSORS = ("x86_64", "amd64")  # on others, onnxruntime 1.19 has no kernels for blocks
FEWEST = 4  # the runtime copies channels four at a time


def block_channels(epoch: EpochGraph) -> None:
    """Run depthwise convolutions and those with enough channels on blocks of channels, including a following Relu.

    They take 0.4 to 0.9 of the time, depthwise ones 0.1 to 0.6, kernel gradients 0.5 to 0.9. 1×1 kernels are excluded:
    they are matrix products, and blocks would take 1 to 3 times as long.
    """
    nodes = list(epoch.body.all_nodes())
    if {node.op_type for node in nodes}.isdisjoint(("Conv", "ConvTranspose")) or (size := block_size()) is None:
        return
    rules = _Rules(size)
    table = {"Conv": rules.conv, "ConvTranspose": rules.conv, "Relu": rules.relu, "Transpose": rules.kernel_gradient}
    rewrite(epoch.model.graph, table, nodes=nodes)
    if any(node.domain == DOMAIN for node in epoch.body.all_nodes()):
        epoch.model.opset_imports[DOMAIN] = 1


@functools.cache
def block_size() -> int | None:
    """Return the number of channels per block of this processor's kernels; None if onnxruntime has no such kernels."""
    if platform.machine().lower() not in PROCESSORS:
        return None
    text = f"""<ir_version: 8, opset_import: ["": 17, "{DOMAIN}": 1]>
        g (float[1,{FEWEST},1,1] x) => (float[1,c,1,1] y) {{ y = {DOMAIN}.ReorderInput(x) }}"""
    try:
        [blocks] = Session(onnx.parser.parse_model(text)).run({"x": np.zeros((1, FEWEST, 1, 1), np.float32)})
    except ModelError:
        return None
    return blocks.shape[1] if blocks.shape[1] > FEWEST else None


class _Rules:
    """Rules that rewrite convolutions in blocks of a given size, or return None if that would not be faster."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._copies = dict[tuple[ir.Graph, ir.Value], ir.Value]()

    def conv(self, op: Builder, node: ir.Node) -> list[ir.Value] | None:
        """Rewrite y = x ⋆ w + b."""
        x, w, b = (*node.inputs, None)[:3]
        image, kernel, result = map(_sizes, (x, w, node.outputs[0]))
        if x is None or w is None or query.tensor(w) is not None or not (image and kernel and result):
            return None
        if _is_kernel_gradient(node):
            return None
        kernels, channels, *places = kernel
        group, turns = node.attributes.get_int("group", 1), node.op_type == "ConvTranspose"
        attributes: dict[str, ir.Attr] | None = {**node.attributes}
        if turns:
            kernels, channels = channels * group, kernels // group
            attributes = _as_conv(node)
        width = self._width(kernels, channels, math.prod(places), group)
        few = image[0] < THRESHOLDS.block_images and math.prod(places) > math.prod(result[2:])
        if width is None or attributes is None or few:
            return None
        whole = [_up(kernels, self._size), _up(channels, width)]
        if turns and group == 1:
            laid_out = self._turned(op, _filled(op, w, [channels, kernels, *places], whole[::-1]), whole, width)
        else:
            w = flipped(op, w, group) if turns else w
            laid_out = self._laid_out(op, _filled(op, w, [kernels, channels, *places], whole), whole, width)
        data = x if group == width == 1 else self._blocks(op, x, image)
        attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", places)
        attributes["group"] = ir.AttrInt64("group", whole[0] if channels == 1 < group else group)
        bias = None if b is None else _filled(op, b, [kernels], whole[:1])
        y = op.Conv(data, op.Reshape(laid_out, [*whole, *places]), bias, domain=DOMAIN, **attributes)
        return [_copied_out(op, _as(x, y, [result[0], whole[0], *result[2:]]), kernels)]

    def kernel_gradient(self, op: Builder, node: ir.Node) -> list[ir.Value] | None:
        """Rewrite dw as a convolution of the padded x with dy as its kernels; the images are its channels."""
        if (parts := find_kernel_gradient(node)) is None or parts.group > 1 or parts.windows.kernel.prod() == 1:
            return None
        x, dy, windows = parts[:3]
        image, result = _sizes(x), _sizes(dy)
        if not image or not result:
            return None
        (batch, channels, *sizes), (_, kernels, *counts), size = image, result, self._size
        small = math.prod(counts) < THRESHOLDS.block_gradient_places
        small = small and kernels * channels >= THRESHOLDS.block_gradient_channels
        end = (np.array(counts) - 1) * windows.strides + windows.extents - sizes - windows.begin
        if small or batch % size or kernels % size or any(sizes + end <= 0):  # onnxruntime's Pad is wrong if empty
            return None
        pads = [[0, 0, rows, columns * size] for rows, columns in (windows.begin.tolist(), end.tolist())]
        planes = self._blocks(op, op.Transpose(x, perm=[1, 0, 2, 3]), [channels, batch, *sizes])
        planes = op.Pad(op.Reshape(planes, [channels, -1, sizes[0], sizes[1] * size]), [*pads[0], *pads[1]])
        planes = op.Reshape(planes, [channels, batch, *(sizes + windows.begin + end).tolist()])
        turned = op.Reshape(self._blocks(op, dy, result), [batch // size, size, kernels // size, -1, size])
        turned = op.Reshape(op.Transpose(turned, perm=[2, 0, 3, 1, 4]), [kernels, batch, *counts])
        spans = {"strides": windows.dilations.tolist(), "dilations": windows.strides.tolist()}
        dw = op.Conv(planes, turned, domain=DOMAIN, kernel_shape=counts, **spans)
        dw = _copied_out(op, _as(x, dw, [channels, kernels, *windows.kernel.tolist()]), kernels)
        return [op.Transpose(dw, perm=[1, 0, 2, 3])]

    def relu(self, op: Builder, node: ir.Node) -> list[ir.Value] | None:
        """Merge a Relu into the preceding convolution, if it is the only use of the convolution."""
        copy = maker_for_one(node.inputs[0])
        conv = maker_for_one(copy.inputs[0]) if copy is not None and copy.domain == DOMAIN else None
        if copy is None or conv is None or copy.graph is not node.graph:
            return None
        conv.attributes["activation"] = ir.AttrString("activation", "Relu")
        return [*copy.outputs]

    def _blocks(self, op: Builder, x: ir.Value, sizes: Sequence[int]) -> ir.Value:
        """Return x in blocks: the original if x was copied from blocks, else a copy that is made once per graph."""
        maker = x.producer()
        if maker is not None and maker.op_type == "ReorderOutput" and maker.inputs[0] is not None:
            return maker.inputs[0]
        if (op.graph, x) not in self._copies:
            blocks = op.ReorderInput(x, domain=DOMAIN)
            self._copies[op.graph, x] = _as(x, blocks, [sizes[0], _up(sizes[1], self._size), *sizes[2:]])
        return self._copies[op.graph, x]

    def _width(self, kernels: int, channels: int, places: int, group: int) -> int | None:
        """Return the channels of a kernel per block: 1 if the input has no blocks or a kernel has one channel.

        Return None if blocks do not pay off, or the runtime has no such kernels.
        """
        size = self._size
        if places == 1 or kernels % FEWEST:
            return None
        if group > 1:
            depthwise, fits = kernels == group and channels == 1, channels % size == kernels // group % size == 0
            return 1 if depthwise else size if fits else None
        if channels < size:
            return 1 if channels * places >= THRESHOLDS.block_kernel and _up(kernels, size) <= 2 * kernels else None
        products = _up(kernels, size) * _up(channels, size)
        return size if channels % FEWEST == 0 and products <= THRESHOLDS.block_products * kernels * channels else None

    def _laid_out(self, op: Builder, w: ir.Value, whole: Sequence[int], width: int) -> ir.Value:
        """Return w [O, C, …] as [O/B, C/b, H·W, b, B]; moving whole rows first takes half the time."""
        (kernels, channels), size = whole, self._size
        rows = op.Transpose(op.Reshape(w, [kernels // size, size, -1]), perm=[0, 2, 1])
        if width == 1:
            return rows
        rows = op.Reshape(rows, [kernels // size * channels // width, width, -1, size])
        return op.Transpose(rows, perm=[0, 2, 1, 3])

    def _turned(self, op: Builder, w: ir.Value, whole: Sequence[int], width: int) -> ir.Value:
        """Return w [C, O, …] as [O/B, C/b, H·W, b, B], spatially flipped."""
        (kernels, channels), size = whole, self._size
        lines = op.Reshape(w, [channels * kernels // size, size, -1])
        lines = op.Reshape(op.Transpose(lines, perm=[0, 2, 1]), [channels // width, width, kernels // size, -1, size])
        lines = op.Transpose(lines, perm=[2, 0, 3, 1, 4])
        lines = op.Reshape(lines, [kernels // size * channels // width, -1, width * size])
        return op.Slice(lines, [-1], [-FAR], [1], [-1])


def _sizes(x: ir.Value | None) -> list[int]:
    """Return the sizes of float32 images or kernels [N, C, H, W]; [] for other or empty values."""
    sizes = [d for d in query.sizes(x) or [] if d]
    whole = x is not None and x.shape is not None and len(sizes) == x.shape.rank() == 4
    return sizes if whole and x is not None and x.dtype == ir.DataType.FLOAT else []


def _as(like: ir.Value, value: ir.Value, sizes: Sequence[int]) -> ir.Value:
    """Set a value's type and sizes, which cannot be inferred for these operators, and return it."""
    value.type, value.shape = like.type, ir.Shape(sizes)
    return value


def _copied_out(op: Builder, blocks: ir.Value, channels: int) -> ir.Value:
    assert blocks.shape is not None
    batch, _, *sizes = blocks.shape.numpy()
    return _as(blocks, op.ReorderOutput(blocks, domain=DOMAIN, channels=channels), [batch, channels, *sizes])


def _up(count: int, size: int) -> int:
    return -(-count // size) * size


def _filled(op: Builder, value: ir.Value, axes: Sequence[int], whole: Sequence[int]) -> ir.Value:
    """Return a value padded with zeros at the end of these axes, up to whole blocks."""
    lacking = [filled - size for size, filled in zip(axes, whole, strict=False)]
    return op.Pad(value, [0] * len(axes) + lacking + [0] * (len(axes) - len(lacking))) if any(lacking) else value


def _as_conv(node: ir.Node) -> dict[str, ir.Attr] | None:
    """Return the attributes of a Conv with flipped kernels that equals a ConvTranspose, or None."""
    spans = as_convolution(node)
    if spans is None or min(spans["pads"]) < 0:
        return None
    return {name: ir.AttrInt64s(name, values) for name, values in spans.items()}


def _is_kernel_gradient(node: ir.Node) -> bool:
    """Return whether a Conv of x with dy computes a kernel gradient, which is rewritten at the end of its formula."""
    readers = [use.node for use in node.outputs[0].uses()]
    behind = [use.node for reader in readers if reader.op_type == "Slice" for use in reader.outputs[0].uses()]
    return any(find_kernel_gradient(reader) for reader in (*readers, *behind))
