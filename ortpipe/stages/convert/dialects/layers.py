"""onnxruntime's fused layers: products, convolutions, activations and normalizations fused with their neighbours."""

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.rewrite import Rewrite
from ortpipe.stages.convert.dialects.forms import attributes_of, inputs_of, is_read, rank_of, unsupported

EPSILON = 1e-12  # default of com.microsoft's normalizations
# Kept here, because they are values of an attribute: activation of a fused operator → names of its parameters
ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Clip": ("min", "max"),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
}


def gelu(op: Builder, x: Value) -> Value:
    """x · Φ(x)."""
    return x * ((op.Erf(x * math.sqrt(0.5)) + 1) * 0.5)


def fast_gelu(op: Builder, node: Node) -> list[Value]:
    """Gelu's tanh approximation, of x + bias: ½x · (1 + tanh(√(2/π) · (x + 0.044715·x³)))."""
    x = add(*node.inputs)
    return [x * ((op.Tanh(x * (1 + x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1) * 0.5)]


def quick_gelu(op: Builder, node: Node) -> list[Value]:
    """x · σ(alpha · x)."""
    [x] = inputs_of(node, 1)
    return [x * op.Sigmoid(x * node.attributes.get_float("alpha", 1.702))]


def fused_mat_mul(op: Builder, node: Node) -> list[Value]:
    """alpha · a⁽ᵀ⁾ · b⁽ᵀ⁾; transBatch moves the first axis behind the batch axes, to MatMul's rows."""
    operands = []
    for x, side in zip(inputs_of(node, 2), "AB", strict=True):
        flags = [node.attributes.get_int(f"{name}{side}", 0) for name in ("trans", "transBatch")]
        rank = rank_of(x) if any(flags) else 0
        axes = list(range(rank))
        if flags[1]:
            axes = [*axes[1:-1], 0, axes[-1]]
        if flags[0] and rank > 1:
            axes[-2:] = axes[:-3:-1]
        operands.append(x if axes == list(range(rank)) else op.Transpose(x, perm=axes))
    alpha, y = node.attributes.get_float("alpha", 1.0), op.MatMul(*operands)
    return [y if alpha == 1 else y * alpha]


def fused_gemm(op: Builder, node: Node) -> list[Value]:
    """activation(Gemm(a, b, c))."""
    numbers = [node.attributes.get_float(f"activation_{name}", None) for name in ("alpha", "beta", "gamma")]
    y = op.Gemm(*node.inputs, **attributes_of(node, "activation"))
    return [_activate(op, node, y, [n for n in numbers if n is not None])]


def fused_conv(op: Builder, node: Node) -> list[Value]:
    """activation(Conv(x, w, b) + z)."""
    x, w, b, z = inputs_of(node, 4)
    y = add(op.Conv(x, w, b, **attributes_of(node, "activation")), z)
    return [_activate(op, node, y, node.attributes.get_floats("activation_params", ()))]


def nhwc_conv(op: Builder, node: Node) -> list[Value]:
    """Conv with the channels last; its weights are those of a Conv."""
    x, *weights = inputs_of(node, len(node.inputs))
    rank = rank_of(x)
    channels_first = op.Transpose(x, perm=[0, rank - 1, *range(1, rank - 1)])
    return [op.Transpose(op.Conv(channels_first, *weights, **attributes_of(node)), perm=[0, *range(2, rank), 1])]


def rms_normalization(op: Builder, node: Node) -> list[Value | None]:
    """SimplifiedLayerNormalization: gamma · x / √(mean x² + epsilon)."""
    x, gamma = inputs_of(node, 2)
    if (axis := node.attributes.get_int("axis", -1)) != -1:
        axis %= rank_of(x)
    return _by_root(op, node, x, gamma, axis)


def skip_layer_normalization(op: Builder, node: Node) -> list[Value | None]:
    """LayerNormalization of x + skip + bias, which is the fourth output."""
    x, skip, gamma, beta, bias = inputs_of(node, 5)
    total = add(add(x, skip), bias)
    return [*layer_normalization(op, node, total, gamma, beta), total]


def skip_rms_normalization(op: Builder, node: Node) -> list[Value | None]:
    """SkipSimplifiedLayerNormalization: the same without the mean."""
    x, skip, gamma, bias = inputs_of(node, 4)
    total = add(add(x, skip), bias)
    return [*_by_root(op, node, total, gamma, -1), None, total][: len(node.outputs)]


def bias_dropout(op: Builder, node: Node) -> list[Value]:
    """Dropout(x + bias) + residual, and the mask."""
    x, bias, residual, *settings = (*node.inputs, None, None)[: max(len(node.inputs), 3)]
    seed = {"seed": node.attributes["seed"].as_int()} if "seed" in node.attributes else {}
    y, mask = op.Dropout(add(x, bias), *settings, outputs=2, **seed)
    return [add(y, residual), mask]


def same_operator(op: Builder, node: Node) -> list[Value]:
    """An operator that ONNX has as well."""
    ys = getattr(op, node.op_type)(*node.inputs, outputs=len(node.outputs), **attributes_of(node))
    return [ys] if isinstance(ys, Value) else list(ys)


def add(x: Any, bias: Value | None = None) -> Value:
    """Return x + bias; x without one."""
    return x if bias is None else x + bias


def layer_normalization(
    op: Builder, node: Node, x: Value | None, gamma: Value | None, beta: Value | None = None
) -> list[Value | None]:
    """Return as many of LayerNormalization's outputs as the node has."""
    epsilon = node.attributes.get_float("epsilon", EPSILON)
    if any(map(is_read, node.outputs[1:3])) and node.op_type.startswith("Skip"):
        return list(op.LayerNormalization(x, gamma, beta, axis=-1, epsilon=epsilon, outputs=3))
    return [op.LayerNormalization(x, gamma, beta, axis=-1, epsilon=epsilon), None, None]


def _by_root(op: Builder, node: Node, x: Value, gamma: Value, axis: int) -> list[Value | None]:
    """Return gamma · x / √(mean x² + epsilon), and 1 / √…; the mean of 16-bit floats is taken in float32."""
    default = 1e-5 if node.op_type == "SimplifiedLayerNormalization" else EPSILON
    floats = op.Cast(x, to=ir.DataType.FLOAT) if x.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else x
    axes = [-1] if axis == -1 else range(axis, rank_of(x))
    root = op.Sqrt(op.ReduceMean(floats * floats, axes) + node.attributes.get_float("epsilon", default))
    inverse = op.Reciprocal(root)
    return [op.cast(floats * inverse, gamma) * gamma, inverse]


def _activate(op: Builder, node: Node, y: Value, numbers: Sequence[float]) -> Value:
    name = node.attributes.get_string("activation", "")
    if not name:
        return y
    if name not in ACTIVATIONS:
        raise unsupported(node, f"activation={name}")
    if name == "Clip":
        return op.Clip(y, *numbers)
    return getattr(op, name)(y, **dict(zip(ACTIVATIONS[name], numbers, strict=False)))


LAYERS: dict[str, Rewrite] = {
    "BiasDropout": bias_dropout,
    "BiasGelu": lambda op, node: [gelu(op, add(*node.inputs))],
    "FastGelu": fast_gelu,
    "FusedConv": fused_conv,
    "FusedGemm": fused_gemm,
    "FusedMatMul": fused_mat_mul,
    "GatherND": same_operator,
    "Gelu": lambda op, node: [gelu(op, add(*node.inputs))],
    "NhwcConv": nhwc_conv,
    "Pad": same_operator,
    "QuickGelu": quick_gelu,
    "Range": same_operator,
    "SimplifiedLayerNormalization": rms_normalization,
    "SkipLayerNormalization": skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": skip_rms_normalization,
    "TransposeMatMul": fused_mat_mul,
    "Trilu": same_operator,
}
