"""Layers of networks by config: parameters named as in PyTorch's state_dict, initial values by published formulas."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.forms.modes import UNBIASED, VARIANCE

Law = Literal["pytorch", "he", "xavier"]
Norm = Literal["none", "batch", "layer"]
Activation = Literal["relu", "gelu", "silu", "tanh"]

OPERATORS = {"relu": "Relu", "gelu": "Gelu", "tanh": "Tanh"}
EPSILON = 1e-5  # of the normalizations, PyTorch's
MOMENTUM = 0.9  # of running statistics: the share of the old value; PyTorch's momentum, 0.1, is that of the new one


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
        self.op, self.dtype, self._law, self._random = op, dtype, law, np.random.default_rng(seed)
        self.notes = list[str]()  # for the user
        self.untrained = dict[str, str]()  # parameter → why it is not trained

    def parameter(self, name: str, array: np.ndarray) -> ir.Value:
        """Add a parameter."""
        return self.op.parameter(name, array.astype(self.dtype))

    def const(self, array: Any) -> ir.Value:
        """Return a constant of the parameters' type."""
        return self.op.const(np.asarray(array, self.dtype))

    def uniform(self, name: str, shape: Sequence[int], bound: float) -> ir.Value:
        """Add a parameter ~ U(±bound)."""
        return self.parameter(name, self._random.uniform(-bound, bound, shape))

    def normal(
        self,
        name: str,
        shape: Sequence[int],
        deviation: float = 1.0,
        *,
        within: float = math.inf,
        repeats: Sequence[int] | int = 1,
    ) -> ir.Value:
        """Add a parameter ~ N(0, deviation²) truncated at `within` deviations, entries repeated along the last axis."""
        array = self._random.normal(size=shape)
        while (outliers := np.abs(array) > within).any():
            array[outliers] = self._random.normal(size=outliers.sum())
        return self.parameter(name, np.repeat(array * deviation, repeats, axis=-1))

    def signs(self, name: str, shape: Sequence[int], *, repeats: Sequence[int] | int = 1) -> ir.Value:
        """Add a parameter of random ±1, its entries repeated along the last axis."""
        return self.parameter(name, np.repeat(self._random.integers(0, 2, shape) * 2.0 - 1, repeats, axis=-1))

    def full(self, name: str, shape: Sequence[int], value: float) -> ir.Value:
        """Add a parameter of one value."""
        return self.parameter(name, np.full(shape, value))

    def weight(self, name: str, shape: Sequence[int]) -> ir.Value:
        """Add the weight [outputs, inputs, …] of a product."""
        inner, outer = math.prod(shape[1:]), shape[0] * math.prod(shape[2:])
        if self._law == "he":
            return self.normal(name, shape, math.sqrt(2 / inner))
        bound = math.sqrt(6 / (inner + outer)) if self._law == "xavier" else 1 / math.sqrt(inner)
        return self.uniform(name, shape, bound)

    def bias(self, name: str, size: int, inner: int, *, rows: int | None = None) -> ir.Value:
        """Add the bias of a product with `inner` inputs; with `rows`, as many equal rows of it."""
        bound = 1 / math.sqrt(inner) if self._law == "pytorch" else 0.0
        array = self._random.uniform(-bound, bound, size)
        return self.parameter(name, array if rows is None else np.tile(array, (rows, 1)))

    def embedding(self, name: str, count: int, size: int) -> ir.Value:
        """Add a vector ~ N(0, 1) for each code, nn.Embedding's; that of code 0 is zeros."""
        table = self._random.normal(size=(count, size))
        table[0] = 0
        return self.parameter(name, table)

    def linear(self, x: ir.Value, name: str, outputs: int, *, bias: bool = True) -> ir.Value:
        """y = x·Wᵀ + b over the last axis, W [outputs, inputs]."""
        width = shape(x)[-1]
        inputs = [self.weight(f"{name}.weight", [outputs, width])]
        inputs += [self.bias(f"{name}.bias", outputs, width)] if bias else []
        return self.product(x, *inputs)

    def product(self, x: ir.Value, weight: ir.Value, *bias: ir.Value) -> ir.Value:
        """y = x·Wᵀ + b over the last axis."""
        sizes = shape(x)
        if len(sizes) == 2:
            return with_type_of(self.op.Gemm(x, weight, *bias, transB=1), x, [sizes[0], shape(weight)[0]])
        rows = self.reshape(x, [None, sizes[-1]])
        return self.reshape(self.product(rows, weight, *bias), [*sizes[:-1], shape(weight)[0]])

    def reshape(self, x: ir.Value, sizes: Sequence[Any]) -> ir.Value:
        """Reshape to these sizes; the first one is unknown or symbolic."""
        return with_type_of(self.op.Reshape(x, [-1, *sizes[1:]]), x, sizes)

    def flat(self, x: ir.Value) -> ir.Value:
        """Flatten each row: [N, K]."""
        return x if len(shape(x)) == 2 else self.reshape(x, [shape(x)[0], math.prod(shape(x)[1:])])

    def activation(self, x: ir.Value, kind: Activation) -> ir.Value:
        """Return f(x); silu is x·σ(x), gelu x·Φ(x)."""
        if kind == "gelu":
            self.check_not_float64("activation", "gelu", "silu or relu")
        if kind != "silu":
            return getattr(self.op, OPERATORS[kind])(x)
        with self.op.formulas():
            if x.dtype == ir.DataType.FLOAT:
                return x * self.op.Sigmoid(x)
            # onnxruntime 1.19 fuses x·σ(x) to an operator that has a kernel for float32 only
            return x * (self.op.Tanh(x * 0.5) * 0.5 + 0.5)

    def check_not_float64(self, key: str, value: str, choices: str = "") -> None:
        """Reject float64 if operators of a setting have no float64 kernels in onnxruntime 1.19 (Erf, Conv)."""
        if self.dtype == np.float64:
            raise ConvertError(
                "onnxruntime does not compute this {key} in float64.",
                key=key,
                got=value,
                fix=f"Set {{key}}={choices}, or leave out {{@convert.dtype}}."
                if choices
                else "Leave out {@convert.dtype}.",
            )

    def dropout(self, x: ir.Value, share: float) -> ir.Value:
        """Set a share of the entries to 0 in training, and scale the others by 1/(1 − share)."""
        return with_type_of(self.op.Dropout(x, self.op.like(share, x), self.op.const(True)), x) if share else x

    def norm(self, x: ir.Value, name: str, kind: Norm) -> ir.Value:
        """Normalize per channel over the batch (axis 1), or per row over the last axis."""
        if kind == "none":
            return x
        size = shape(x)[-1 if kind == "layer" else 1]
        scale, shift = self.full(f"{name}.weight", [size], 1), self.full(f"{name}.bias", [size], 0)
        if kind == "layer":
            return with_type_of(self.op.LayerNormalization(x, scale, shift, axis=-1, epsilon=EPSILON), x)
        statistics = self.full(f"{name}.running_mean", [size], 0), self.full(f"{name}.running_var", [size], 1)
        self.untrained |= {f"{name}.running_mean": "running mean", f"{name}.running_var": "running variance"}
        settings: dict[str, Any] = {"epsilon": EPSILON, "momentum": MOMENTUM, "training_mode": 1, "outputs": 3}
        y = self.op.BatchNormalization(x, scale, shift, *statistics, **settings)[0]
        y.producer().metadata_props[VARIANCE] = UNBIASED
        return with_type_of(y, x)

    def convolution(self, x: ir.Value, name: str, outputs: int, kernel: int) -> ir.Value:
        """Convolve [N, C, H, W] with W [outputs, C, kernel, kernel], keeping H and W."""
        rows, inputs, *size = shape(x)
        weight = self.weight(f"{name}.weight", [outputs, inputs, kernel, kernel])
        bias = self.bias(f"{name}.bias", outputs, inputs * kernel * kernel)
        before, after = (kernel - 1) // 2, kernel // 2
        y = self.op.Conv(x, weight, bias, kernel_shape=[kernel, kernel], pads=[before, before, after, after])
        return with_type_of(y, x, [rows, outputs, *size])


def shape(x: ir.Value) -> list[Any]:
    """Return a value's sizes; all but the first are numbers."""
    assert x.shape is not None
    return list(x.shape)


def with_type_of(y: ir.Value, x: ir.Value, sizes: Sequence[Any] | None = None) -> ir.Value:
    """Set a value's type to another's, and its shape to the other's or to `sizes`."""
    y.type, y.shape = x.type, x.shape if sizes is None else ir.Shape(sizes)
    return y
