"""Integers of quantized models as floats: of the same values, so that gradients pass."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.errors import ConvertError
from ortpipe.graph import query
from ortpipe.graph.builder import Builder, Names, used_names
from ortpipe.graph.origins import mark, take
from ortpipe.stages.convert.dialects.forms import rank_of, unsupported

INTEGERS = ("INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16", "INT32")
MOVES = (  # operators that give elements of their first input
    *("Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
)


def same(op: Builder, x: Any) -> Value:
    """Return x, through which no gradient passes: every float of at least 2⁻¹⁷ is a whole multiple of 2⁻⁴⁰."""
    return op.Round(x * 2.0**40) * 2.0**-40


@dataclass(frozen=True)
class Held:
    """A quantized value."""

    steps: Any  # its integers less the zero point, as floats
    zero: Any  # a Value, or its array


class Integers:
    """What stands for integers in a graph, and which parameters were some."""

    def __init__(self, fake: bool) -> None:
        self.fake = fake
        self.held: dict[Value, Held | None] = {}  # floats that stand for integers
        self.weights: dict[tuple[Value, bytes], Value] = {}
        self.scales: dict[Value, None] = {}
        self.replaced: dict[Value, ir.Graph] = {}  # integers, and where they were

    def quantized(self, op: Builder, node: Node, x: Any, scale: Any, zero: Any, axis: int = 1) -> Value:
        """Return integers for floats, as floats; the zero point is a constant."""
        y = node.outputs[0]
        kind = y.dtype or (zero.dtype if zero is not None else ir.DataType.UINT8)
        offset = query.constant(zero) if zero is not None else np.zeros((), np.uint8)
        if kind.name not in INTEGERS or offset is None:
            raise unsupported(node, f"integers of type {kind}, or a zero point that is computed")
        y.type = None
        offset = offset.astype(np.float32)
        shifted = along(op, x, op.const(offset), axis, offset.size) if offset.size > 1 else float(offset.ravel()[0])
        low, high = float(kind.min), float(kind.max)
        steps = x / along(op, x, scale, axis, size_of(scale))
        if offset.size > 1:
            steps = op.Min(op.Max(steps, low - shifted), high - shifted)
        else:
            steps = op.Clip(steps, low - shifted, high - shifted)
        if self.fake:
            steps = steps + (op.Round(steps) - same(op, steps))
        whole = op.Identity(steps) if offset.size == 1 and not shifted else steps + shifted
        self.held[whole] = Held(steps, offset)
        return whole

    def dequantized(self, op: Builder, x: Any, scale: Any, zero: Any, axis: int, node: Node) -> Value:
        """Return the floats of integers: of an initializer, or what only moves one, a parameter."""
        root, moves = x, []
        while size_of(scale) == 1 and (maker := root.producer()) is not None and maker.op_type in MOVES:
            if root in self.held:
                break
            moves.append(maker)
            root = maker.inputs[0]
        if root in self.replaced or (root.is_initializer() and not root.is_graph_input()):
            value = self.weight(op, root, scale, zero, axis, node)
            for move in reversed(moves):
                attributes = {name: a.value for name, a in move.attributes.items()}
                value = getattr(op, move.op_type)(value, *move.inputs[1:], **attributes)
            return value
        return self.less(op, x, zero, axis) * along(op, x, scale, axis, size_of(scale))

    def weight(self, op: Builder, held: Value, scale: Any, zero: Any, axis: int, node: Node) -> Value:
        """Return the float parameter that an initializer of integers is, under its name."""
        factor, offset = query.constant(scale), query.constant(zero) if zero is not None else None
        if factor is None or (zero is not None and offset is None):
            raise unsupported(node, f"a scale of {held.name!r} that is computed")
        if scale.is_initializer():
            self.scales[scale] = None
        key = (held, factor.tobytes() + (b"" if offset is None else offset.tobytes()))
        if key not in self.weights:
            integers, block = query.array(held), node.attributes.get_int("block_size", 0)
            shapes = [shaped(a, integers, axis, block) for a in (factor, np.zeros(()) if offset is None else offset)]
            array = ((integers.astype(np.float64) - shapes[1]) * shapes[0]).astype(factor.dtype)
            name, parameter = str(held.name), self.parameter(held, array)
            zero_name = zero.name if zero is not None else None
            if not block and factor.ndim < 2 and scale.is_initializer() and (zero is None or zero.is_initializer()):
                mark(parameter, {"initializer": name, "transform": [["dequantize", scale.name, zero_name, axis]]})
            self.weights[key] = parameter
        return self.weights[key]

    def from_blocks(
        self, held: Value, shape: tuple[int, ...], sizes: tuple[int, int], scales: Value, zero: Value | None, *more: Any
    ) -> Value:
        """Return the float parameter that packed rows of integers are: of so many bits, so many in a row."""
        given = [held, scales, *([] if zero is None else [zero])]
        if not all(v in self.replaced or (v.is_initializer() and not v.is_graph_input()) for v in given):
            raise ConvertError(
                "The weights of a quantized product are initializers, with their scales and zero points.",
                got=f"{held.name!r} or what scales it is computed",
                fix="Convert the file from which this one was quantized.",
            )
        names = [None if v is None else str(v.name) for v in (scales, zero)]
        steps = [["reshape", *shape], ["blocks", *sizes, *names], *more]
        key = (held, repr(steps).encode())
        if key not in self.weights:
            arrays, name = {str(v.name): query.array(v) for v in given}, str(held.name)
            floats = take(arrays[name], steps, arrays.__getitem__).astype(arrays[str(scales.name)].dtype)
            self.weights[key] = mark(self.parameter(held, floats), {"initializer": name, "transform": steps})
        return self.weights[key]

    def parameter(self, held: Value, array: np.ndarray) -> Value:
        """Put floats under the name of integers, which are left without a graph (`written` looks after them)."""
        name, graph = str(held.name), held.graph
        assert isinstance(graph, ir.Graph)
        if name in graph.initializers and graph.initializers[name] is held:
            del graph.initializers[name]
        else:  # floats of another scale have the name
            name = Names(used_names(graph)).fresh(name)
        value = ir.val(name, const_value=ir.tensor(np.ascontiguousarray(array).reshape(array.shape), name=name))
        graph.register_initializer(value)
        self.replaced[held] = graph
        return value

    def put_back(self) -> None:
        """Give integers that something else reads, too, a place and a name again; what scales them is a constant."""
        for scale in self.scales:
            if scale.uses() and not scale.is_graph_input():
                graph, name = scale.graph, scale.name
                assert isinstance(graph, ir.Graph)
                constant = ir.node("Constant", [], {"value": scale.const_value}, name=name)
                ir.convenience.replace_all_uses_with(scale, constant.outputs[0])
                del graph.initializers[str(name)]
                constant.outputs[0].name, constant.outputs[0].type = name, scale.type
                graph.insert_before(graph[0], constant)
        for held, graph in self.replaced.items():
            if uses := [(node, place) for node, place in held.uses() if node.graph is not None]:
                name = Names(used_names(graph)).fresh(str(held.name))
                value = ir.val(name, const_value=ir.tensor(query.array(held), name=name))
                graph.register_initializer(value)
                for node, place in uses:
                    node.replace_input_with(place, value)

    def less(self, op: Builder, x: Any, zero: Any, axis: int = 1) -> Any:
        """Return integers less their zero point, as floats."""
        held = self.held.get(x)
        constant = query.constant(zero) if zero is not None else np.zeros(())
        if held is not None and (
            held.zero is zero
            or (constant is not None and isinstance(held.zero, np.ndarray) and np.array_equal(held.zero, constant))
        ):
            return held.steps
        whole = x if x in self.held else op.Cast(x, to=ir.DataType.FLOAT)
        if constant is None:
            return whole - (zero if zero in self.held else op.Cast(zero, to=ir.DataType.FLOAT))
        if not constant.any():
            return whole
        shifted = op.const(constant.astype(np.float32).reshape(() if constant.size == 1 else constant.shape))
        return whole - along(op, x, shifted, axis, constant.size)

    def bias(self, op: Builder, node: Node, bias: Any, xs: Any, ws: Any, beta: float = 1.0) -> Value:
        """Return the float bias of integers in units of both scales."""
        factors = [query.constant(scale) for scale in (xs, ws)]
        if not (bias.is_initializer() or bias in self.replaced) or factors[0] is None or factors[1] is None:
            raise unsupported(node, "a bias, or scales, that are computed")
        integers, name = query.array(bias), str(bias.name)
        array = integers * (factors[0].astype(np.float64) * factors[1].astype(np.float64)).ravel() * beta
        steps = [["dequantize", xs.name, None, 0], ["scale", ws.name]]
        parameter = self.parameter(bias, array.reshape(integers.shape).astype(factors[0].dtype))
        return mark(parameter, {"initializer": name, "transform": steps}) if beta == 1 else parameter


def size_of(scale: Any) -> int:
    """Return how many numbers a scale has; one that is computed is one."""
    held = query.constant(scale)
    return 1 if held is None else held.size


def along(op: Builder, x: Value, numbers: Any, axis: int, size: int) -> Any:
    """Return numbers per channel so that they broadcast along an axis of x; one number as a scalar."""
    held = query.constant(numbers)
    if size == 1:
        if held is not None:
            return op.const(held.reshape(()))
        if numbers.shape is None or numbers.shape.rank() == 0 or numbers.shape[0] == 1:
            return numbers
    rank = rank_of(x)
    wide = [-1 if i == axis % rank else 1 for i in range(rank)]
    return op.Reshape(numbers, wide) if held is None else op.const(held.reshape(wide))


def shaped(numbers: np.ndarray, integers: np.ndarray, axis: int, block: int = 0) -> np.ndarray:
    """Return numbers so that they broadcast to weights: one, one per channel of an axis, or one per block."""
    numbers = np.asarray(numbers, np.float64)
    if block and numbers.ndim:
        return np.repeat(numbers, block, axis)[tuple(slice(d) for d in integers.shape)]
    if numbers.size == 1:
        return numbers.reshape(())
    if numbers.ndim > 1:
        return numbers if numbers.ndim == integers.ndim else numbers[..., None, :]  # of each direction of an LSTM
    return numbers.reshape([-1 if i == axis % integers.ndim else 1 for i in range(integers.ndim)])
