"""Quantized models read as float models: floats with the integers' values, so that gradients pass.

QuantizeLinear rounds clip(x / scale) to integers, and passes the gradient inside the range as if it did not round (the
straight-through estimator, Bengio et al. 2013); with `quantized=float` it only clips, because a quantizer may have
folded a Relu into its bounds. Weights become float parameters once: (w − zero point) · scale; scales and zero points
are constants.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.check import clean
from ortpipe.graph.core.inference import infer
from ortpipe.graph.core.operators import having
from ortpipe.graph.core.rewrite import Rewrite, rewrite
from ortpipe.stages.convert.dialects.forms import MICROSOFT, attributes_of, inputs_of, rank_of, unsupported, with_ranks
from ortpipe.stages.convert.dialects.integers import INTEGERS, Integers, QuantizedValue, per_channel, stop_gradient
from ortpipe.stages.convert.dialects.layers import add

Mode = Literal["fake", "float"]
CARRIES = having("moves", "integers")
BITS = (2, 4, 8)  # of weights in blocks
NO_VALUES = having("shape") | {"Cast"}  # they read no values, or write floats


def write_float(model: ir.Model, mode: Mode) -> tuple[str, ...]:
    """Rewrite a quantized model's operators as float ones, in place; return their names."""
    reader = _QuantizedReader(mode == "fake")
    rules = reader.rules()
    quantized_nodes = [n for n in model.graph.all_nodes() if n.op_type in rules and n.domain in ("", MICROSOFT)]
    if not quantized_nodes:
        return ()
    infer(model)
    for node in quantized_nodes:
        node.domain = ""
    names = tuple(dict.fromkeys(node.op_type for node in quantized_nodes))
    nodes = list(model.graph.all_nodes())
    table = {**dict.fromkeys((n.op_type for n in nodes), reader.carry), **rules}
    rewrite(model.graph, {name: with_ranks(model, rule) for name, rule in table.items()}, nodes=nodes)
    clean(model)
    reader.restore_integers()
    infer(model)
    return names


class _QuantizedReader(Integers):
    """Rewrites quantized operators as float ones, in the graph's order."""

    def rules(self) -> Mapping[str, Rewrite]:
        """Return the rules by operator."""
        unary: dict[str, Callable[..., Any]] = {
            "QLinearLeakyRelu": lambda op, x, node: op.LeakyRelu(x, alpha=node.attributes.get_float("alpha", 0.01)),
            "QLinearReduceMean": _reduce_mean,
            "QLinearSigmoid": lambda op, x, node: op.Sigmoid(x),
            "QLinearSoftmax": _softmax,
            "QLinearAveragePool": _average_pool,
            "QLinearGlobalAveragePool": _global_average_pool,
        }
        binary: dict[str, Callable[..., Any]] = {
            "QLinearAdd": lambda op, a, b, node: a + b,
            "QLinearMatMul": lambda op, a, b, node: op.MatMul(a, b),
            "QLinearMul": lambda op, a, b, node: a * b,
        }
        return {
            **{name: self.of(write, 1) for name, write in unary.items()},
            **{name: self.of(write, -2, -1) for name, write in binary.items()},
            "ConvInteger": self.conv_integer,
            "DequantizeLinear": self.dequantize_linear,
            "DynamicQuantizeLSTM": self.dynamic_lstm,
            "DynamicQuantizeLinear": self.dynamic_quantize_linear,
            "DynamicQuantizeMatMul": self.dynamic_mat_mul,
            "GatherBlockQuantized": self.block_gather,
            "MatMulInteger": self.mat_mul_integer,
            "MatMulIntegerToFloat": self.mat_mul_to_float,
            "MatMulNBits": self.block_mat_mul,
            "NhwcMaxPool": self.max_pool,
            "QAttention": self.attention,
            "QEmbedLayerNormalization": self.embed,
            "QGemm": self.gemm,
            "QLinearConcat": self.concat,
            "QLinearConv": self.conv,
            "QLinearWhere": self.of(lambda op, a, b, node: op.Where(node.inputs[0], a, b), -2, -1, first=1),
            "QuantizeLinear": self.quantize_linear,
        }

    def carry(self, op: Builder, node: Node) -> None:
        """Mark the outputs of operators that only move or compare integers as integers."""
        if node.op_type in NO_VALUES or not any(x in self.values for x in node.inputs):
            return
        integers = [y for y in node.outputs if y.dtype is None or y.dtype.name in INTEGERS]
        if node.op_type not in CARRIES or not integers:
            names = [x.name for x in node.inputs if x is not None and x in self.values]
            raise unsupported(node, f"it reads the integers of {names[0]!r}")
        for place, x in enumerate(node.inputs):
            if x is not None and x not in self.values and x.dtype in {y.dtype for y in integers} - {None}:
                node.replace_input_with(place, op.Cast(x, to=ir.DataType.FLOAT))
        for y in integers:
            y.type = ir.TensorType(ir.DataType.FLOAT)
            self.values[y] = None

    def quantize_linear(self, op: Builder, node: Node) -> list[Value]:
        """Round(clip(x / scale, low − zero, high − zero)) + zero, halves to even."""
        x, scale, zero = inputs_of(node, 3)
        return [self.quantize(op, node, x, scale, zero, node.attributes.get_int("axis", 1))]

    def dynamic_quantize_linear(self, op: Builder, node: Node) -> list[Value]:
        """Quantization by the range of x, scale = (max(x, 0) − min(x, 0)) / 255; no gradient passes the range."""
        [x] = inputs_of(node, 1)
        x.type = x.type or ir.TensorType(ir.DataType.FLOAT)  # the operator accepts no other type
        low = stop_gradient(op, op.Min(op.ReduceMin(x, keepdims=0), 0))
        high = stop_gradient(op, op.Max(op.ReduceMax(x, keepdims=0), 0))
        span = high - low
        scale = op.Where(op.Equal(span, 0), 1, span) / 255
        zero: Any = op.Clip(op.Round(op.Neg(low) / scale), 0, 255)
        steps: Any = x / scale
        if self.fake:
            steps = op.Min(op.Max(steps, op.Neg(zero)), 255 - zero)
            steps = steps + (op.Round(steps) - stop_gradient(op, steps))
        integers = steps + zero
        for place in (0, 2):
            node.outputs[place].type = None
        self.values |= {integers: QuantizedValue(steps, zero), zero: None}
        return [integers, scale, zero]

    def dequantize_linear(self, op: Builder, node: Node) -> list[Value] | None:
        """(x − zero) · scale; of weights, computed once."""
        x, scale, zero = inputs_of(node, 3)
        if node.attributes.get_int("block_size", 0) and query.constant(x) is None:
            raise unsupported(node, "blocks of a value that is no weight")
        y = self.dequantize(op, x, scale, zero, node.attributes.get_int("axis", 1), node)
        return [op.Identity(y) if y.is_initializer() else y]

    def floats(self, op: Builder, node: Node, *axes: int, first: int = 0) -> list[Value]:
        """Return the floats of the inputs from `first` on, (x, scale, zero) for each axis."""
        inputs = node.inputs[first:]
        triples = zip(inputs[::3], inputs[1::3], inputs[2::3], axes, strict=False)
        return [self.dequantize(op, x, scale, zero, axis, node) for x, scale, zero, axis in triples]

    def of(self, write: Callable[..., Any], *axes: int, first: int = 0) -> Rewrite:
        """Return the rule of an operator with inputs x, its scale and zero for each axis, then those of y."""

        def rule(op: Builder, node: Node) -> list[Value]:
            ys, yz = (*node.inputs, None)[first + 3 * len(axes) :][:2]
            return [self.quantize(op, node, write(op, *self.floats(op, node, *axes, first=first), node), ys, yz)]

        return rule

    def conv(self, op: Builder, node: Node) -> list[Value]:
        """QLinearConv."""
        x, xs, xz, w, ws, wz, ys, yz, bias = inputs_of(node, 9)
        weight = self.dequantize(op, w, ws, wz, 0, node)
        inputs = [self.dequantize(op, x, xs, xz, 1, node), weight]
        if bias is not None:
            inputs.append(self.bias(op, node, bias, xs, ws))
        rank = rank_of(weight)
        y = _channels_first(op, node, inputs[0], rank, lambda x, **attributes: op.Conv(x, *inputs[1:], **attributes))
        return [self.quantize(op, node, y, ys, yz)]

    def max_pool(self, op: Builder, node: Node) -> list[Value]:
        """NhwcMaxPool, which compares integers."""
        [x] = inputs_of(node, 1)
        floats, rank = x if x in self.values else op.Cast(x, to=ir.DataType.FLOAT), len(_kernel(node)) + 2
        node.attributes["channels_last"] = ir.AttrInt64("channels_last", 1)
        return [self.mark_integer(node, _channels_first(op, node, floats, rank, op.MaxPool))]

    def attention(self, op: Builder, node: Node) -> list[Value]:
        """QAttention: com.microsoft's Attention of floats."""
        x, w, bias, xs, ws, mask, xz, wz, past = inputs_of(node, 9)
        inputs = [self.dequantize(op, x, xs, xz, -1, node), self.dequantize(op, w, ws, wz, 1, node)]
        attributes = attributes_of(node)
        outputs = op.Attention(*inputs, bias, mask, past, domain=MICROSOFT, outputs=len(node.outputs), **attributes)
        return [outputs] if isinstance(outputs, Value) else list(outputs)

    def embed(self, op: Builder, node: Node) -> list[Value]:
        """QEmbedLayerNormalization: com.microsoft's EmbedLayerNormalization of floats."""
        ids, segments, *tables = node.inputs[:7]
        pairs = zip(tables, node.inputs[8:13], node.inputs[13:18], strict=True)
        floats = [x if x is None else self.dequantize(op, x, scale, zero, 1, node) for x, scale, zero in pairs]
        settings: Any = {"domain": MICROSOFT, "outputs": len(node.outputs), **attributes_of(node)}
        return list(op.EmbedLayerNormalization(ids, segments, *floats, node.inputs[7], **settings))

    def gemm(self, op: Builder, node: Node) -> list[Value]:
        """QGemm: alpha · a⁽ᵀ⁾ · b⁽ᵀ⁾ + c, quantized where a scale is given."""
        _, a_scale, _, _, b_scale, _, c, ys, yz = inputs_of(node, 9)
        get = node.attributes.get_int
        first, second = self.floats(op, node, 1, 0 if get("transB", 0) else 1)
        alpha = node.attributes.get_float("alpha", 1.0)
        bias = [self.bias(op, node, c, a_scale, b_scale, alpha)] if c is not None else []
        y = op.Gemm(first, second, *bias, alpha=alpha, transA=get("transA", 0), transB=get("transB", 0))
        return [y if ys is None else self.quantize(op, node, y, ys, yz)]

    def concat(self, op: Builder, node: Node) -> list[Value]:
        """QLinearConcat of (x, scale, zero) triples."""
        ys, yz, *operands = node.inputs
        parts = self.floats(op, node, *[1] * (len(operands) // 3), first=2)
        return [self.quantize(op, node, op.Concat(*parts, axis=node.attributes.get_int("axis")), ys, yz)]

    def mat_mul_integer(self, op: Builder, node: Node) -> list[Value]:
        """(a − zero) · (b − zero), in units of the scale behind it: b is a parameter divided by that scale."""
        a, b, a_zero, b_zero = inputs_of(node, 4)
        weight = self.in_steps(op, node, b, b_zero, 1)
        return [self.mark_integer(node, op.MatMul(self.subtract_zero(op, a, a_zero, -2), weight))]

    def conv_integer(self, op: Builder, node: Node) -> list[Value]:
        """Conv of (x − zero) and (w − zero), in units of the scale behind it."""
        x, w, x_zero, w_zero = inputs_of(node, 4)
        weight = self.in_steps(op, node, w, w_zero, 0)
        y = op.Conv(self.subtract_zero(op, x, x_zero), weight, **attributes_of(node))
        return [self.mark_integer(node, y)]

    def mark_integer(self, node: Node, y: Value) -> Value:
        """Mark a float as the node's integer output."""
        node.outputs[0].type = None
        self.values[y] = None
        return y

    def in_steps(self, op: Builder, node: Node, w: Any, zero: Any, axis: int) -> Any:
        """Return a weight in steps of its scale, by which the product is multiplied behind the node."""
        if not (w.is_initializer() or w in self.replaced):
            return self.subtract_zero(op, w, zero, axis)
        scale = _scale_behind(node)
        if scale is None:
            raise unsupported(node, "no constant scale behind it")
        parameter = self.weight(op, w, scale, zero, axis, node)
        factor = query.constant(scale)
        assert factor is not None
        return parameter / op.const(per_channel(factor, query.array(w), axis).astype(factor.dtype))

    def mat_mul_to_float(self, op: Builder, node: Node) -> list[Value]:
        """MatMulIntegerToFloat: a · b + bias."""
        a, b, a_scale, b_scale, a_zero, b_zero, bias = inputs_of(node, 7)
        floats = self.subtract_zero(op, a, a_zero, -2) * a_scale
        y = op.MatMul(floats, self.dequantize(op, b, b_scale, b_zero, 1, node))
        return [add(y, bias)]

    def dynamic_mat_mul(self, op: Builder, node: Node) -> list[Value]:
        """DynamicQuantizeMatMul: a · b + bias, with a quantized by its range."""
        a, b, b_scale, b_zero, bias = inputs_of(node, 5)
        quantize = ir.node("DynamicQuantizeLinear", [a], num_outputs=3)
        integers, scale, _ = self.dynamic_quantize_linear(op, quantize)
        value = self.values[integers]
        assert value is not None
        quantize.resize_inputs(0)
        y = op.MatMul(value.steps * scale, self.dequantize(op, b, b_scale, b_zero, 1, node))
        return [add(y, bias)]

    def dynamic_lstm(self, op: Builder, node: Node) -> list[Value]:
        """DynamicQuantizeLSTM as an LSTM of its weights; its inputs are not rounded."""
        x, w, r, bias, lengths, h, c, peep, ws, wz, rs, rz = inputs_of(node, 12)
        pair = [
            op.Transpose(self.weight(op, weight, scale, zero, 0, node), perm=[0, 2, 1])
            for weight, scale, zero in ((w, ws, wz), (r, rs, rz))
        ]
        y = op.LSTM(x, *pair, bias, lengths, h, c, peep, outputs=max(len(node.outputs), 2), **attributes_of(node))
        return list(y)[: len(node.outputs)]

    def block_mat_mul(self, op: Builder, node: Node) -> list[Value]:
        """MatMulNBits: x · w + bias, w [K, N] in packed rows of its transpose; x is not rounded."""
        x, packed, scales, zero, order, bias = inputs_of(node, 6)
        get_int = node.attributes.get_int
        bits, block, count, width = get_int("bits", 4), get_int("block_size"), get_int("K"), get_int("N")
        groups = query.constant(order)
        if bits not in BITS or get_int("weight_prepacked", 0) != 0:
            raise unsupported(node, f"bits={bits}, or weight_prepacked")
        if order is not None and (
            groups is None or not np.array_equal(groups.ravel(), np.arange(groups.size) // block)
        ):
            raise unsupported(node, "rows of weights in another order (g_idx)")
        y = op.MatMul(x, self.from_blocks(packed, (width, -1), (bits, count), scales, zero, ["transpose"]))
        return [add(y, bias)]

    def block_gather(self, op: Builder, node: Node) -> list[Value]:
        """GatherBlockQuantized: rows of a table by index."""
        table, places, scales, zero = inputs_of(node, 4)
        get_int = node.attributes.get_int
        axis, block, quantized_axis = get_int("gather_axis", 0), get_int("block_size", 128), get_int("quantize_axis", 1)
        if table.dtype is not None and table.dtype.name == "UINT8":
            bits, shape = get_int("bits", 4), query.array(table).shape
            if len(shape) != 2 or axis % 2 or quantized_axis % 2 != 1 or bits not in BITS:
                raise unsupported(node, "a table of bytes other than a matrix in blocks of its rows")
            floats = self.from_blocks(table, shape, (bits, shape[1] * 8 // bits), scales, zero)
        elif rank_of(scales) and table.is_initializer():
            node.attributes["block_size"] = ir.AttrInt64("block_size", block)
            floats = self.weight(op, table, scales, zero, quantized_axis, node)
        else:
            raise unsupported(node, "a table that is no initializer")
        return [op.Gather(floats, places, axis=axis)]


def _softmax(op: Builder, x: Value, node: Node) -> Value:
    axis, opset = node.attributes.get_int("axis", -1), node.attributes.get_int("opset", 13)
    if opset < 13 and axis not in (-1, rank_of(node.inputs[0]) - 1):  # type: ignore[arg-type]
        raise unsupported(node, f"axis={axis} of opset {opset}")
    return op.Softmax(x, axis=axis)


def _reduce_mean(op: Builder, x: Value, node: Node) -> Value:
    return op.ReduceMean(
        x, list(node.attributes.get_ints("axes") or []), keepdims=node.attributes.get_int("keepdims", 1)
    )


def _average_pool(op: Builder, x: Value, node: Node) -> Value:
    return _channels_first(op, node, x, len(_kernel(node)) + 2, op.AveragePool)


def _global_average_pool(op: Builder, x: Value, node: Node) -> Value:
    rank = rank_of(node.inputs[0]) if node.attributes.get_int("channels_last", 0) else 0  # type: ignore[arg-type]
    return _channels_first(op, node, x, rank, op.GlobalAveragePool)


def _kernel(node: Node) -> tuple[int, ...]:
    return tuple(node.attributes.get_ints("kernel_shape", ()))


def _channels_first(op: Builder, node: Node, x: Value, rank: int, write: Callable[..., Value]) -> Value:
    """Apply an ONNX operator to x, whose channels may be last."""
    attributes = attributes_of(node)
    if not attributes.pop("channels_last", 0):
        return write(x, **attributes)
    channels_first = op.Transpose(x, perm=[0, rank - 1, *range(1, rank - 1)])
    return op.Transpose(write(channels_first, **attributes), perm=[0, *range(2, rank), 1])


def _scale_behind(node: Node) -> Value | None:
    """Return the constant by which a product of integers is multiplied, alone or times the other factor's scale."""
    sums = [node.outputs[0]]
    for total in sums:
        for cast, _ in total.uses():
            if cast.op_type == "Add":  # an integer bias
                sums.append(cast.outputs[0])
            for product, _ in cast.outputs[0].uses() if cast.op_type == "Cast" else ():
                for factor in product.inputs if product.op_type == "Mul" else ():
                    producer = factor.producer() if factor is not None else None
                    for scale in producer.inputs if producer is not None and producer.op_type == "Mul" else [factor]:
                        if query.constant(scale) is not None:
                            return scale
    return None
