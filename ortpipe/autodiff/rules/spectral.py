"""Fourier transforms: each is linear, so its gradient is the transform in the other direction."""

import numpy as np
import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules
from ortpipe.autodiff.open_shapes import ranked
from ortpipe.autodiff.rules.indexing import along_axis
from ortpipe.autodiff.windows import not_static
from ortpipe.errors import DeriveError
from ortpipe.graph.core import query


def dft(
    op: Backward, node: Node, dy: Value, x: Value, length: Value | None = None, axis: Value | None = None
) -> Gradients:
    """y = F x of length n: dx = Fᴴ dy = n · F⁻¹ dy; for y = F⁻¹ x: dx = F dy / n. If x is real, take the real part.

    With onesided, dy is padded with zeros for the half of Fᴴ's columns that the output omits. If x was cropped to
    length n, dx is padded with zeros; if x was padded, dx is cropped.
    """
    inverse = node.attributes.get_int("inverse", 0)
    if inverse and node.attributes.get_int("onesided", 0):
        raise DeriveError(
            "An inverse DFT has a gradient only if it reads all frequencies.",
            got=f"{query.called(node)}, with onesided",
            fix="Give it both halves, or take no gradient through it{@freeze}.",
        )
    place = -2
    if axis is not None:
        static_axis = op.constant(axis)
        if static_axis is None:
            raise not_static(node, axis, "the axis")
        place = int(static_axis.numpy().item())
    place %= ranked(x).rank()
    n = op.reshape(length, []) if length is not None else op.dim(x, place)
    if node.attributes.get_int("onesided", 0):
        dy = _filled(op, dy, n, place)
    dx = _transform(op, dy, n, place, inverse=not inverse)
    dx = dx / op.cast(n, x) if inverse else dx * op.cast(n, x)
    dx = _like(op, dx, x)
    if length is None:
        return [dx]
    return [op.Slice(op.Concat(dx, op.zeros(x), axis=place), [0], op.Reshape(op.dim(x, place), [1]), [place])]


def stft(
    op: Backward,
    node: Node,
    dy: Value,
    x: Value,
    step: Value,
    window: Value | None = None,
    length: Value | None = None,
) -> Gradients:
    """STFT: frame t is F (w · x[t · step …]): dx adds w · Fᴴ dy where frames overlap, dw = Σ x · Fᴴ dy."""
    if length is not None:
        n = op.reshape(length, [])
    else:
        assert window is not None
        n = op.dim(window, 0)
    starts = op.Range(0, op.dim(node.outputs[0], 1), 1) * op.Reshape(op.Cast(step, to=7), [])
    places = op.Unsqueeze(starts, [1]) + op.Unsqueeze(op.Range(0, op.Cast(n, to=7), 1), [0])
    if dy.shape is None:  # shape inference leaves it unknown if the signal's length is
        dy.shape = ir.Shape([None] * 4)
    if node.attributes.get_int("onesided", 1):
        dy = _filled(op, dy, n, 2)
    frames = _like(op, _transform(op, dy, n, 2, inverse=True) * op.cast(n, x), x)  # [N, frames, n, 1 or 2]
    if window is None:
        return [along_axis(op, x, places, frames, 1)]
    dw = None
    if window in op.active:
        dw = op.ReduceSum(frames * op.Gather(x, places, axis=1), [0, 1, 3], keepdims=0)
    return [along_axis(op, x, places, frames * op.reshape(window, [-1, 1], [None, 1]), 1), None, dw]


def _transform(op: Backward, x: Value, n: Value, axis: int, *, inverse: bool) -> Value:
    """Return the transform of length n along an axis, with both parts of each number."""
    y = op.DFT(x, n, op.const(np.int64(axis)), inverse=int(inverse))
    last = ranked(x).rank() - 1
    y.type, y.shape = x.type, ir.Shape([None if i == axis else 2 if i == last else d for i, d in enumerate(ranked(x))])
    return y


def _filled(op: Backward, dy: Value, n: Value, axis: int) -> Value:
    """Return dy padded with zeros to length n; its own padding in onnxruntime expects the full length."""
    missing = op.Reshape(n - op.dim(dy, axis), [1])
    ends = [[0]] * (2 * ranked(dy).rank())
    ends[ranked(dy).rank() + axis] = missing
    filled = op.Pad(dy, op.Concat(*ends, axis=0), op.like(0, dy))
    filled.shape = ir.Shape([None if i == axis else d for i, d in enumerate(ranked(dy))])
    return filled


def _like(op: Backward, dx: Value, x: Value) -> Value:
    """Return the real part of a gradient if x is real, which its last axis shows."""
    parts = ranked(x)[-1]
    if parts == 2:
        return dx
    real = op.Slice(dx, [0], op.Reshape(op.dim(x, -1), [1]), [-1])
    real.shape = ir.Shape([*ranked(dx)[:-1], parts])
    return real


RULES: Rules = {
    "DFT": dft,
    "STFT": stft,
}
