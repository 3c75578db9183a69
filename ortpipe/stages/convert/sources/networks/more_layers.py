"""Layers of networks other than plain perceptrons: normalization, convolution, embeddings, and layers of rows."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.data.rows import Rows
from ortpipe.errors import ConvertError
from ortpipe.graph.forms.modes import UNBIASED, VARIANCE
from ortpipe.stages.convert.sources.networks.layers import Activation, Layers, Norm, shape, with_type_of

EPSILON = 1e-5  # of the normalizations, PyTorch's
MOMENTUM = 0.9  # of running statistics: the share of the old value; PyTorch's momentum, 0.1, is that of the new one


def uniform(layers: Layers, name: str, sizes: Sequence[int], bound: float) -> ir.Value:
    """Add a parameter ~ U(±bound)."""
    return layers.parameter(name, layers.random.uniform(-bound, bound, sizes))


def normal(
    layers: Layers,
    name: str,
    sizes: Sequence[int],
    deviation: float = 1.0,
    *,
    within: float = math.inf,
    repeats: Sequence[int] | int = 1,
) -> ir.Value:
    """Add a parameter ~ N(0, deviation²) truncated at `within` deviations, entries repeated along the last axis."""
    array = layers.random.normal(size=sizes)
    while (outliers := np.abs(array) > within).any():
        array[outliers] = layers.random.normal(size=outliers.sum())
    return layers.parameter(name, np.repeat(array * deviation, repeats, axis=-1))


def signs(layers: Layers, name: str, sizes: Sequence[int], *, repeats: Sequence[int] | int = 1) -> ir.Value:
    """Add a parameter of random ±1, its entries repeated along the last axis."""
    return layers.parameter(name, np.repeat(layers.random.integers(0, 2, sizes) * 2.0 - 1, repeats, axis=-1))


def full(layers: Layers, name: str, sizes: Sequence[int], value: float) -> ir.Value:
    """Add a parameter of one value."""
    return layers.parameter(name, np.full(sizes, value))


def embedding(layers: Layers, name: str, count: int, size: int) -> ir.Value:
    """Add a vector ~ N(0, 1) for each code, nn.Embedding's; that of code 0 is zeros."""
    table = layers.random.normal(size=(count, size))
    table[0] = 0
    return layers.parameter(name, table)


def product_of_rows(layers: Layers, x: ir.Value, weight: ir.Value, *bias: ir.Value) -> ir.Value:
    """y = x·Wᵀ + b over the last axis of [N, …, K]."""
    sizes = shape(x)
    rows = reshape(layers, x, [None, sizes[-1]])
    return reshape(layers, layers.product(rows, weight, *bias), [*sizes[:-1], shape(weight)[0]])


def reshape(layers: Layers, x: ir.Value, sizes: Sequence[Any]) -> ir.Value:
    """Reshape to these sizes; the first one is unknown or symbolic."""
    return with_type_of(layers.op.Reshape(x, [-1, *sizes[1:]]), x, sizes)


def flat(layers: Layers, x: ir.Value) -> ir.Value:
    """Flatten each row: [N, K]."""
    return x if len(shape(x)) == 2 else reshape(layers, x, [shape(x)[0], math.prod(shape(x)[1:])])


def side_by_side(layers: Layers, parts: Sequence[ir.Value]) -> ir.Value:
    """Concatenate values [N, …] to [N, K]."""
    if len(parts) == 1:
        return parts[0]
    return with_type_of(layers.op.Concat(*parts, axis=1), parts[0], ["N", sum(shape(part)[1] for part in parts)])


def curved(layers: Layers, x: ir.Value, kind: Activation) -> ir.Value:
    """Return x·σ(x) for silu, x·Φ(x) for gelu."""
    if kind == "gelu":
        check_not_float64(layers, "activation", "gelu", "silu or relu")
        return layers.op.Gelu(x)
    if x.dtype == ir.DataType.FLOAT:
        return x * layers.op.Sigmoid(x)
    # onnxruntime 1.19 fuses x·σ(x) to an operator that has a kernel for float32 only
    return x * (layers.op.Tanh(x * 0.5) * 0.5 + 0.5)


def check_not_float64(layers: Layers, key: str, value: str, choices: str = "") -> None:
    """Reject float64 if operators of a setting have no float64 kernels in onnxruntime 1.19 (Erf, Conv)."""
    if layers.dtype == np.float64:
        rule, leave_out = "onnxruntime does not compute this {key} in float64.", "Leave out {@convert.dtype}."
        fix = f"Set {{key}}={choices}, or leave out {{@convert.dtype}}." if choices else leave_out
        raise ConvertError(rule, key=key, got=value, fix=fix)


def norm(layers: Layers, x: ir.Value, name: str, kind: Norm) -> ir.Value:
    """Normalize per channel over the batch (axis 1), or per row over the last axis."""
    if kind == "none":
        return x
    size = shape(x)[-1 if kind == "layer" else 1]
    scale, shift = full(layers, f"{name}.weight", [size], 1), full(layers, f"{name}.bias", [size], 0)
    if kind == "layer":
        return with_type_of(layers.op.LayerNormalization(x, scale, shift, axis=-1, epsilon=EPSILON), x)
    mean, variance = full(layers, f"{name}.running_mean", [size], 0), full(layers, f"{name}.running_var", [size], 1)
    layers.untrained |= {f"{name}.running_mean": "running mean", f"{name}.running_var": "running variance"}
    settings: dict[str, Any] = {"epsilon": EPSILON, "momentum": MOMENTUM, "training_mode": 1, "outputs": 3}
    y = layers.op.BatchNormalization(x, scale, shift, mean, variance, **settings)[0]
    y.producer().metadata_props[VARIANCE] = UNBIASED
    return with_type_of(y, x)


def residual_blocks(layers: Layers, x: ir.Value, network: Any) -> ir.Value:
    """Write the blocks of a residual `MLP`: x ← x + dropout(W₂·dropout(f(W₁·norm(x)))), then f(norm(x))."""
    width, *sizes = network.hidden
    x = layers.linear(x, "input", width)
    for i, size in enumerate(sizes):
        y = layers.linear(norm(layers, x, f"blocks.{i}.norm", network.norm), f"blocks.{i}.linear1", size)
        y = layers.dropout(layers.activation(y, network.activation), network.dropout)
        x = x + layers.dropout(layers.linear(y, f"blocks.{i}.linear2", width), network.dropout)
    return layers.activation(norm(layers, x, "norm", network.norm), network.activation)


def convolution(layers: Layers, x: ir.Value, name: str, outputs: int, kernel: int) -> ir.Value:
    """Convolve [N, C, H, W] with W [outputs, C, kernel, kernel], keeping H and W."""
    rows, inputs, *size = shape(x)
    weight = layers.weight(f"{name}.weight", [outputs, inputs, kernel, kernel])
    bias = layers.bias(f"{name}.bias", outputs, inputs * kernel * kernel)
    before, after = (kernel - 1) // 2, kernel // 2
    y = layers.op.Conv(x, weight, bias, kernel_shape=[kernel, kernel], pads=[before, before, after, after])
    return with_type_of(y, x, [rows, outputs, *size])


def only_input(rows: Rows, noun: str) -> tuple[str, np.ndarray]:
    """Return the single input of a network of images or sequences."""
    if len(rows.inputs) != 1:
        actual, fix = f"inputs {', '.join(rows.inputs)}", "Give one array."
        raise ConvertError(f"A network of {noun} must have one input.", got=actual, fix=fix)
    [(name, array)] = rows.inputs.items()
    return name, array
