"""The integers of quantized models as floats of the same values, so that gradients pass."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.errors import ConvertError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.graph.core.operators import having
from ortpipe.graph.core.origins import mark, take
from ortpipe.stages.convert.dialects.forms import attributes_of, rank_of, unsupported

INTEGERS = ("INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16", "INT32")
MOVES = having("moves")


def stop_gradient(op: Builder, x: Any) -> Value:
    """Return x without a gradient, by rounding to multiples of 2⁻⁴⁰; every float32 of at least 2⁻¹⁷ is one."""
    return op.Round(x * 2.0**40) * 2.0**-40


@dataclass(frozen=True)
class QuantizedValue:
    """A quantized value."""

    steps: Any  # its integers minus the zero point, as floats
    zero: Any  # a Value, or its array


class Integers:
    """The floats that represent integers in a graph, and the parameters that were integers."""

    def __init__(self, fake: bool) -> None:
        self.fake = fake
        self.values: dict[Value, QuantizedValue | None] = {}  # floats that represent integers
        self.weights: dict[tuple[Value, bytes], Value] = {}
        self.scales: dict[Value, None] = {}
        self.replaced: dict[Value, ir.Graph] = {}  # integers → the graph that they were in

    def quantize(self, op: Builder, node: Node, x: Any, scale: Any, zero: Any, axis: int = 1) -> Value:
        """Return the quantized integers of floats, as floats; the zero point must be constant."""
        y = node.outputs[0]
        dtype = y.dtype or (zero.dtype if zero is not None else ir.DataType.UINT8)
        shift = query.constant(zero) if zero is not None else np.zeros((), np.uint8)
        if dtype.name not in INTEGERS or shift is None:
            raise unsupported(node, f"integers of type {dtype}, or a computed zero point")
        y.type = None
        shift = shift.astype(np.float32)
        shifts = along_axis(op, x, op.const(shift), axis, shift.size) if shift.size > 1 else float(shift.ravel()[0])
        low, high = float(dtype.min), float(dtype.max)
        steps = x / along_axis(op, x, scale, axis, size_of(scale))
        if shift.size > 1:
            steps = op.Min(op.Max(steps, low - shifts), high - shifts)
        else:
            steps = op.Clip(steps, low - shifts, high - shifts)
        if self.fake:
            steps = steps + (op.Round(steps) - stop_gradient(op, steps))
        integers = op.Identity(steps) if shift.size == 1 and not shifts else steps + shifts
        self.values[integers] = QuantizedValue(steps, shift)
        return integers

    def dequantize(self, op: Builder, x: Any, scale: Any, zero: Any, axis: int, node: Node) -> Value:
        """Return the floats of integers; for an initializer, possibly behind operators of MOVES, a parameter."""
        root, moves = x, []
        while size_of(scale) == 1 and (producer := root.producer()) is not None and producer.op_type in MOVES:
            if root in self.values:
                break
            moves.append(producer)
            root = producer.inputs[0]
        if root in self.replaced or (root.is_initializer() and not root.is_graph_input()):
            value = self.weight(op, root, scale, zero, axis, node)
            for move in reversed(moves):
                value = getattr(op, move.op_type)(value, *move.inputs[1:], **attributes_of(move))
            return value
        return self.subtract_zero(op, x, zero, axis) * along_axis(op, x, scale, axis, size_of(scale))

    def weight(self, op: Builder, integers: Value, scale: Any, zero: Any, axis: int, node: Node) -> Value:
        """Return the float parameter of an initializer of integers, under its name."""
        factor, offset = query.constant(scale), query.constant(zero) if zero is not None else None
        if factor is None or (zero is not None and offset is None):
            raise unsupported(node, f"a scale of {integers.name!r} that is computed")
        if scale.is_initializer():
            self.scales[scale] = None
        key = (integers, factor.tobytes() + (b"" if offset is None else offset.tobytes()))
        if key not in self.weights:
            array, block = query.array(integers), node.attributes.get_int("block_size", 0)
            shapes = [per_channel(a, array, axis, block) for a in (factor, np.zeros(()) if offset is None else offset)]
            floats = ((array.astype(np.float64) - shapes[1]) * shapes[0]).astype(factor.dtype)
            name, parameter = str(integers.name), self.parameter(integers, floats)
            zero_name = zero.name if zero is not None else None
            if not block and factor.ndim < 2 and scale.is_initializer() and (zero is None or zero.is_initializer()):
                mark(parameter, {"initializer": name, "transform": [["dequantize", scale.name, zero_name, axis]]})
            self.weights[key] = parameter
        return self.weights[key]

    def from_blocks(
        self,
        packed: Value,
        shape: tuple[int, ...],
        sizes: tuple[int, int],
        scales: Value,
        zero: Value | None,
        *more: Any,
    ) -> Value:
        """Return the float parameter of packed rows of integers; `sizes` are bits and integers per row."""
        tensors = [packed, scales, *([] if zero is None else [zero])]
        if not all(v in self.replaced or (v.is_initializer() and not v.is_graph_input()) for v in tensors):
            raise ConvertError(
                "The weights of a quantized product, their scales and zero points must be initializers.",
                got=f"{packed.name!r}, its scale or zero point is computed",
                fix="Convert the file from which this one was quantized.",
            )
        names = [None if v is None else str(v.name) for v in (scales, zero)]
        steps = [["reshape", *shape], ["blocks", *sizes, *names], *more]
        key = (packed, repr(steps).encode())
        if key not in self.weights:
            arrays, name = {str(v.name): query.array(v) for v in tensors}, str(packed.name)
            floats = take(arrays[name], steps, arrays.__getitem__).astype(arrays[str(scales.name)].dtype)
            self.weights[key] = mark(self.parameter(packed, floats), {"initializer": name, "transform": steps})
        return self.weights[key]

    def parameter(self, integers: Value, array: np.ndarray) -> Value:
        """Register floats under the name of integers, and remove these from the graph (see `restore_integers`)."""
        name, graph = str(integers.name), integers.graph
        assert isinstance(graph, ir.Graph)
        if name in graph.initializers and graph.initializers[name] is integers:
            del graph.initializers[name]
        else:  # floats of another scale took the name
            name = Names(used_names(graph)).fresh(name)
        value = ir.val(name, const_value=ir.tensor(np.ascontiguousarray(array).reshape(array.shape), name=name))
        graph.register_initializer(value)
        self.replaced[integers] = graph
        return value

    def restore_integers(self) -> None:
        """Register integers that still have readers again, under a new name, and turn scales into constants."""
        for scale in self.scales:
            if scale.uses() and not scale.is_graph_input():
                graph, name = scale.graph, scale.name
                assert isinstance(graph, ir.Graph)
                constant = ir.node("Constant", [], {"value": scale.const_value}, name=name)
                ir.convenience.replace_all_uses_with(scale, constant.outputs[0])
                del graph.initializers[str(name)]
                constant.outputs[0].name, constant.outputs[0].type = name, scale.type
                graph.insert_before(graph[0], constant)
        for integers, graph in self.replaced.items():
            if uses := [(node, place) for node, place in integers.uses() if node.graph is not None]:
                name = Names(used_names(graph)).fresh(str(integers.name))
                value = ir.val(name, const_value=ir.tensor(query.array(integers), name=name))
                graph.register_initializer(value)
                for node, place in uses:
                    node.replace_input_with(place, value)

    def subtract_zero(self, op: Builder, x: Any, zero: Any, axis: int = 1) -> Any:
        """Return integers minus their zero point, as floats."""
        value = self.values.get(x)
        constant = query.constant(zero) if zero is not None else np.zeros(())
        if value is not None and (
            value.zero is zero
            or (constant is not None and isinstance(value.zero, np.ndarray) and np.array_equal(value.zero, constant))
        ):
            return value.steps
        integers = x if x in self.values else op.Cast(x, to=ir.DataType.FLOAT)
        if constant is None:
            return integers - (zero if zero in self.values else op.Cast(zero, to=ir.DataType.FLOAT))
        if not constant.any():
            return integers
        zero_point = op.const(constant.astype(np.float32).reshape(() if constant.size == 1 else constant.shape))
        return integers - along_axis(op, x, zero_point, axis, constant.size)

    def bias(self, op: Builder, node: Node, bias: Any, xs: Any, ws: Any, beta: float = 1.0) -> Value:
        """Return the float bias of integers in units of the product of both scales."""
        factors = [query.constant(scale) for scale in (xs, ws)]
        if not (bias.is_initializer() or bias in self.replaced) or factors[0] is None or factors[1] is None:
            raise unsupported(node, "a computed bias, or computed scales")
        integers, name = query.array(bias), str(bias.name)
        array = integers * (factors[0].astype(np.float64) * factors[1].astype(np.float64)).ravel() * beta
        steps = [["dequantize", xs.name, None, 0], ["scale", ws.name]]
        parameter = self.parameter(bias, array.reshape(integers.shape).astype(factors[0].dtype))
        return mark(parameter, {"initializer": name, "transform": steps}) if beta == 1 else parameter


def size_of(scale: Any) -> int:
    """Return the size of a scale; that of a computed scale is 1."""
    constant = query.constant(scale)
    return 1 if constant is None else constant.size


def along_axis(op: Builder, x: Value, numbers: Any, axis: int, size: int) -> Any:
    """Return numbers per channel in a shape that broadcasts along an axis of x; one number as a scalar."""
    constant = query.constant(numbers)
    if size == 1:
        if constant is not None:
            return op.const(constant.reshape(()))
        if numbers.shape is None or numbers.shape.rank() == 0 or numbers.shape[0] == 1:
            return numbers
    rank = rank_of(x)
    sizes = [-1 if i == axis % rank else 1 for i in range(rank)]
    return op.Reshape(numbers, sizes) if constant is None else op.const(constant.reshape(sizes))


def per_channel(numbers: np.ndarray, integers: np.ndarray, axis: int, block: int = 0) -> np.ndarray:
    """Return numbers in a shape that broadcasts to weights: one, one per channel of an axis, or one per block."""
    numbers = np.asarray(numbers, np.float64)
    if block and numbers.ndim:
        return np.repeat(numbers, block, axis)[tuple(slice(d) for d in integers.shape)]
    if numbers.size == 1:
        return numbers.reshape(())
    if numbers.ndim > 1:
        return numbers if numbers.ndim == integers.ndim else numbers[..., None, :]  # for each direction of an LSTM
    return numbers.reshape([-1 if i == axis % integers.ndim else 1 for i in range(integers.ndim)])
