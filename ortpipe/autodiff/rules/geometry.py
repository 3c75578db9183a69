"""Determinants, and the sampling grid of an affine transformation."""

import numpy as np
import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules
from ortpipe.autodiff.open_shapes import ranked
from ortpipe.autodiff.rules.pooling import eye
from ortpipe.autodiff.windows import FAR


def det(op: Backward, node: Node, dy: Value, x: Value) -> Gradients:
    """Det: dx = dy · cofactors; a cofactor is the determinant of x with one row replaced by a unit row.

    This also holds if x is singular, at the cost of n² determinants of n × n.
    """
    unit, (*batch, n, _) = eye(op, x, -1), ranked(x)
    rows, columns = op.Unsqueeze(unit, [1, 3]), op.Unsqueeze(unit, [0, 2])  # [n, 1, n, 1], [1, n, 1, n]
    outer = [len(batch), len(batch) + 1]
    minors = op.Unsqueeze(x, outer) * (1 - rows) + rows * columns
    minors.type, minors.shape = x.type, ir.Shape([*batch, n, n, n, n])
    cofactors = op.Det(minors)
    cofactors.type, cofactors.shape = x.type, x.shape
    return [op.Unsqueeze(dy, outer) * cofactors]


def affine_grid(op: Backward, node: Node, dy: Value, theta: Value, size: Value) -> Gradients:
    """AffineGrid y = [g, 1] θᵀ for every position g: dθ = dyᵀ [g, 1]; the positions are the grid of θ = [I, 0]."""
    axes = ranked(dy)[-1]
    assert isinstance(axes, int) and theta.dtype is not None
    unit = op.const(np.eye(axes, axes + 1, dtype=theta.dtype.numpy())[None])
    one_image = op.Concat([1], op.Slice(size, [1], [FAR]), axis=0)
    align = node.attributes.get_int("align_corners", 0)
    places = op.Reshape(op.AffineGrid(unit, one_image, align_corners=align), [-1, axes])
    return [
        op.MatMul(
            op.Transpose(op.Reshape(dy, [0, -1, axes]), perm=[0, 2, 1]), op.Pad(places, [0, 0, 0, 1], op.like(1, theta))
        )
    ]


RULES: Rules = {"AffineGrid": affine_grid, "Det": det}
