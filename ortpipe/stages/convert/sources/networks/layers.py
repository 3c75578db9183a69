"""Layers of networks by config: parameters named as in PyTorch's state_dict, initial values by published formulas."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx_ir as ir

from ortpipe.doors import later
from ortpipe.graph.core.builder import Builder

if TYPE_CHECKING:  # for other networks than perceptrons
    from ortpipe.stages.convert.sources.networks.more_layers import curved, product_of_rows
else:
    later(__name__)

Law = Literal["pytorch", "he", "xavier"]
Norm = Literal["none", "batch", "layer"]
Activation = Literal["relu", "gelu", "silu", "tanh"]


class Layers:
    """Writes layers into a graph; the same calls with the same seed give the same weights.

    Args:
        op: the builder of the graph.
        dtype: of the parameters.
        seed: of their initial values.
        law: the distribution of the weights of products. `pytorch` is nn.Linear's, W and b ~ U(±1/√fan_in); `he` is
            N(0, 2/fan_in) (He et al., 2015); `xavier` is U(±√(6/(fan_in + fan_out))) (Glorot and Bengio, 2010); the
            last two have zeros as biases.
    """

    def __init__(self, op: Builder, dtype: np.dtype, seed: int, law: Law = "pytorch") -> None:
        self.op, self.dtype, self._law, self.random = op, dtype, law, np.random.default_rng(seed)
        self.notes = list[str]()  # for the user
        self.untrained = dict[str, str]()  # parameter → why it is not trained

    def parameter(self, name: str, array: np.ndarray) -> ir.Value:
        """Add a parameter."""
        return self.op.parameter(name, array.astype(self.dtype))

    def const(self, array: Any) -> ir.Value:
        """Return a constant of the parameters' type."""
        return self.op.const(np.asarray(array, self.dtype))

    def weight(self, name: str, shape: Sequence[int]) -> ir.Value:
        """Add the weight [outputs, inputs, …] of a product."""
        inner, outer = math.prod(shape[1:]), shape[0] * math.prod(shape[2:])
        if self._law == "he":
            return self.parameter(name, self.random.normal(size=shape) * math.sqrt(2 / inner))
        bound = math.sqrt(6 / (inner + outer)) if self._law == "xavier" else 1 / math.sqrt(inner)
        return self.parameter(name, self.random.uniform(-bound, bound, shape))

    def bias(self, name: str, size: int, inner: int, *, rows: int | None = None) -> ir.Value:
        """Add the bias of a product with `inner` inputs; with `rows`, as many equal rows of it."""
        bound = 1 / math.sqrt(inner) if self._law == "pytorch" else 0.0
        array = self.random.uniform(-bound, bound, size)
        return self.parameter(name, array if rows is None else np.tile(array, (rows, 1)))

    def linear(self, x: ir.Value, name: str, outputs: int, *, bias: bool = True) -> ir.Value:
        """y = x·Wᵀ + b over the last axis, W [outputs, inputs]."""
        width = shape(x)[-1]
        inputs = [self.weight(f"{name}.weight", [outputs, width])]
        inputs += [self.bias(f"{name}.bias", outputs, width)] if bias else []
        return self.product(x, *inputs)

    def product(self, x: ir.Value, weight: ir.Value, *bias: ir.Value) -> ir.Value:
        """y = x·Wᵀ + b over the last axis."""
        if len(shape(x)) > 2:
            return product_of_rows(self, x, weight, *bias)
        return with_type_of(self.op.Gemm(x, weight, *bias, transB=1), x, [shape(x)[0], shape(weight)[0]])

    def activation(self, x: ir.Value, kind: Activation) -> ir.Value:
        """Return f(x); silu is x·σ(x), gelu x·Φ(x)."""
        if kind in ("gelu", "silu"):
            return curved(self, x, kind)
        return self.op.Relu(x) if kind == "relu" else self.op.Tanh(x)

    def dropout(self, x: ir.Value, share: float) -> ir.Value:
        """Set a share of the entries to 0 in training, and scale the others by 1/(1 − share)."""
        return with_type_of(self.op.Dropout(x, self.op.like(share, x), self.op.const(True)), x) if share else x


def shape(x: ir.Value) -> list[Any]:
    """Return a value's sizes; all but the first are numbers."""
    assert x.shape is not None
    return list(x.shape)


def with_type_of(y: ir.Value, x: ir.Value, sizes: Sequence[Any] | None = None) -> ir.Value:
    """Set a value's type to another's, and its shape to the other's or to `sizes`."""
    y.type, y.shape = x.type, x.shape if sizes is None else ir.Shape(sizes)
    return y
