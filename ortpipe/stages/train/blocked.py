"""A pass over an epoch: convolutions of blocks of channels (NCHWc), as onnxruntime itself has them of constant weights.

It lays out constant weights when it loads a model, so its own pass leaves those that training changes as they are.
Here a step lays them out, and what it convolves: [N, C, H, W] becomes [N, C/B, H, W, B], with as many channels B as a
register of the processor holds; the last block is filled with zeros.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.errors import ModelError
from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.graph.rewrite import rewrite
from ortpipe.runtime.session import Session
from ortpipe.stages.train.epoch import EpochGraph

DOMAIN = "com.microsoft.nchwc"
FEWEST = 4  # the runtime copies channels four at a time
# Zeros are multiplied, too: up to so many products for each that counts, blocks were measured to be faster.
MOST = 1.5
# Fewer channels than a block are read as they lie. Blocks of the result then pay where a kernel has so many numbers:
# with 3 channels, 3×3 kernels take 1.2 to 3 times as long, 7×7 kernels 0.7 to 0.8 of the time.
LONG = 64
# Of fewer images, kernels of more numbers than a result, as kernel gradients are, take 1 to 2 times as long.
FEW_IMAGES = 4
FAR = 2**31 - 1  # an end of a Slice that lies in front of every axis, negated
# How autodiff's rules turn kernels: the nodes from the last one on, with their axes.
TURNING = (("Reshape", ()), ("Transpose", (1, 2, 0)), ("Slice", ()), ("Transpose", (2, 1, 0)), ("Reshape", ()))


def block_channels(epoch: EpochGraph) -> None:
    """Let convolutions of enough channels, and depthwise ones, run on blocks of them, with the Relu behind them.

    They take 0.4 to 0.9 of the time, depthwise ones 0.1 to 0.6. Kernels of one place would take 1 to 3 times as long:
    they are products of matrices.
    """
    nodes = [node for node in epoch.body.all_nodes() if node.op_type in ("Conv", "ConvTranspose", "Relu")]
    if all(node.op_type == "Relu" for node in nodes) or (size := block_size()) is None:
        return
    convolution = functools.partial(_in_blocks, size)
    rewrite(epoch.model.graph, {"Conv": convolution, "ConvTranspose": convolution, "Relu": _with_relu}, nodes=nodes)
    if any(node.domain == DOMAIN for node in epoch.body.all_nodes()):
        epoch.model.opset_imports[DOMAIN] = 1


@functools.cache
def block_size() -> int | None:
    """Return how many channels this processor's kernels take as a block; None: this onnxruntime has no such kernels."""
    text = f"""<ir_version: 8, opset_import: ["": 17, "{DOMAIN}": 1]>
        g (float[1,{FEWEST},1,1] x) => (float[1,c,1,1] y) {{ y = {DOMAIN}.ReorderInput(x) }}"""
    try:
        [blocks] = Session(onnx.parser.parse_model(text)).run({"x": np.zeros((1, FEWEST, 1, 1), np.float32)})
    except ModelError:
        return None
    return blocks.shape[1] if blocks.shape[1] > FEWEST else None


def _in_blocks(size: int, op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Write y = x ⋆ w + b in blocks; None: it is as fast, or faster, as it is."""
    x, w, b = (*node.inputs, None)[:3]
    axes = [query.sizes(value) or [] for value in (x, w, node.outputs[0])]
    if x is None or w is None or w.is_initializer() or x.dtype != ir.DataType.FLOAT:
        return None
    if not all(len(sizes) == 4 and None not in sizes for sizes in axes):
        return None
    (batch, *_), (kernels, channels, *places), (_, _, *result) = ([d or 0 for d in sizes] for sizes in axes)
    group, turned = node.attributes.get_int("group", 1), _before_turning(w)
    attributes: dict[str, ir.Attr] | None = {**node.attributes}
    if node.op_type == "ConvTranspose":
        kernels, channels, turned = channels, kernels, w
        attributes = _as_conv(node, places)
    width = _width(size, kernels, channels, math.prod(places), group)
    if width is None or attributes is None or (batch < FEW_IMAGES and math.prod(places) > math.prod(result)):
        return None
    whole = [_up(kernels, size), _up(channels, width)]
    laid_out = _laid_out(op, w, whole, size, width) if turned is None else _turned(op, turned, whole, size, width)
    if b is not None:
        b = _filled(op, b, whole[:1])
    attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", places)
    attributes["group"] = ir.AttrInt64("group", whole[0] if channels == 1 < group else group)
    data = x if group == width == 1 else _blocks(op, x, size)
    y = op.Conv(data, op.Reshape(laid_out, [*whole, *places]), b, domain=DOMAIN, **attributes)
    y.type, y.shape = x.type, ir.Shape([batch, whole[0], *result])
    return [op.ReorderOutput(y, domain=DOMAIN, channels=kernels)]


def _as_conv(node: ir.Node, places: Sequence[int]) -> dict[str, ir.Attr] | None:
    """Return the attributes with which a ConvTranspose is a Conv with turned (flipped) kernels; None: it is not."""
    attributes = node.attributes
    plain = {"kernel_shape", "strides", "dilations", "pads", "group"}.issuperset(attributes)
    dilations, pads = attributes.get_ints("dilations", [1, 1]), attributes.get_ints("pads", [0] * 4)
    reach = [(k - 1) * d for k, d in zip(places, dilations, strict=True)]
    turned = [r - p for r, p in zip(reach * 2, pads, strict=True)]
    strided = set(attributes.get_ints("strides", [1])) != {1}
    if not plain or strided or attributes.get_int("group", 1) > 1 or min(turned) < 0:
        return None
    return {name: ir.AttrInt64s(name, values) for name, values in (("dilations", dilations), ("pads", turned))}


def _before_turning(w: ir.Value) -> ir.Value | None:
    """Return the v whose kernels derive turned, w[o, c, i] = v[c, o, −1 − i]; None: it turned none."""
    x: ir.Value | None = w
    for op_type, perm in TURNING:
        node = x.producer() if x is not None else None
        if node is None or node.op_type != op_type or (*node.attributes.get_ints("perm", ()),) != perm:
            return None
        spans = [span.tolist() for span in map(query.constant, node.inputs[1:]) if span is not None]
        if op_type == "Slice" and spans != [[-1], [-FAR], [0], [-1]]:
            return None
        x = node.inputs[0]
    kernels, channels, *places = query.sizes(w) or []
    return x if query.sizes(x) == [channels, kernels, *places] else None


def _width(size: int, kernels: int, channels: int, places: int, group: int) -> int | None:
    """Return how many channels of a kernel lie together: 1 if the input has no blocks or a kernel has one channel.

    None: blocks do not pay, or the runtime has no such kernels.
    """
    if places == 1 or kernels % FEWEST:
        return None
    if group > 1:
        depthwise, fits = kernels == group and channels == 1, channels % size == kernels // group % size == 0
        return 1 if depthwise else size if fits else None
    if channels < size:
        return 1 if channels * places >= LONG and _up(kernels, size) <= 2 * kernels else None
    products = _up(kernels, size) * _up(channels, size)
    return size if channels % FEWEST == 0 and products <= MOST * kernels * channels else None


def _up(count: int, size: int) -> int:
    return -(-count // size) * size


def _laid_out(op: Builder, w: ir.Value, whole: Sequence[int], size: int, width: int) -> ir.Value:
    """Return w [O, C, …] as [O/B, C/b, H·W, b, B], filled; by whole rows first, which takes half the time."""
    kernels, channels = whole
    rows = op.Transpose(op.Reshape(_filled(op, w, whole), [kernels // size, size, -1]), perm=[0, 2, 1])
    if width == 1:
        return rows
    rows = op.Reshape(rows, [kernels // size * channels // width, width, -1, size])
    return op.Transpose(rows, perm=[0, 2, 1, 3])


def _turned(op: Builder, w: ir.Value, whole: Sequence[int], size: int, width: int) -> ir.Value:
    """Return w [C, O, …] as [O/B, C/b, H·W, b, B], filled and with the last place first."""
    kernels, channels = whole
    lines = op.Reshape(_filled(op, w, [channels, kernels]), [channels * kernels // size, size, -1])
    lines = op.Reshape(op.Transpose(lines, perm=[0, 2, 1]), [channels // width, width, kernels // size, -1, size])
    lines = op.Transpose(lines, perm=[2, 0, 3, 1, 4])
    lines = op.Reshape(lines, [kernels // size * channels // width, -1, width * size])
    return op.Slice(lines, [-1], [-FAR], [1], [-1])


def _filled(op: Builder, value: ir.Value, sizes: Sequence[int]) -> ir.Value:
    """Return a value with zeros behind its first axes, up to these sizes."""
    axes = [d for d in query.sizes(value) or [] if d is not None]
    lacking = [size - d for size, d in zip(sizes, axes, strict=False)]
    if not any(lacking):
        return value
    return op.Pad(value, [0] * len(axes) + lacking + [0] * (len(axes) - len(lacking)))


def _blocks(op: Builder, x: ir.Value, size: int) -> ir.Value:
    """Return x in blocks: as it was before it was copied out of them, if it was."""
    maker = x.producer()
    if maker is not None and maker.op_type == "ReorderOutput" and maker.inputs[0] is not None:
        return maker.inputs[0]
    blocks = op.ReorderInput(x, domain=DOMAIN)
    batch, channels, *sizes = x.shape.numpy() if x.shape is not None else ()
    blocks.type, blocks.shape = x.type, ir.Shape([batch, _up(channels, size), *sizes])
    return blocks


def _with_relu(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Let the convolution in front of a Relu do it, if nothing else reads what it gives."""
    copy = query.maker_for_one(node.inputs[0])
    conv = query.maker_for_one(copy.inputs[0]) if copy is not None and copy.domain == DOMAIN else None
    if copy is None or conv is None:
        return None
    conv.attributes["activation"] = ir.AttrString("activation", "Relu")
    return [*copy.outputs]
