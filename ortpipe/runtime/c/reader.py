"""Read an epoch graph as values: its Scan becomes a level, each node the values of its operator."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from ortpipe.graph.core.operators import having, operands
from ortpipe.runtime.c.operators import OPERATORS, picked
from ortpipe.runtime.c.values import SMALL, Level, NotCompiled, Value, ValueTable, refused
from ortpipe.runtime.node_order import in_order, unsupported

RANDOM, MOVES = having("random"), having("layout", "moves")
# onnx's evaluator has no GatherElements of more than 32 indices, and takes the logarithm of probabilities that are 0.
UNFOLDED = {*RANDOM, "GatherElements", "LogSoftmax"}
SHAPES = {*having("shape"), "EyeLike"}  # read only the shape of their input
SIZES = {"Constant", *SHAPES, *(op for op, places in operands("sized_from").items() if 0 in places)}
SUPPORTED = {*OPERATORS, *MOVES, *SIZES, "Scan"}


@dataclass(frozen=True)
class NodeForm:
    """A node without its inputs; `number` counts nodes that draw at random."""

    attributes: Mapping[str, Any]
    outputs: int
    level: Level
    number: int

    def get(self, name: str) -> Any:
        """Return an attribute, its default, or None."""
        return self.attributes.get(name)


def check_operators(model: onnx.ModelProto) -> None:
    """Raise if a model has operators that are not compiled, naming each."""
    if (what := unsupported(model, SUPPORTED)) is not None:
        raise refused(what)


class GraphReader:
    """Reads a model.

    Args:
        model: a graph with one Scan, whose inputs and outputs are those of the graph.
        weights: the values of initializers that have none in `model`.
        shapes: the shapes of inputs, without the axis of steps.
    """

    def __init__(
        self, model: onnx.ModelProto, weights: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._weights, self._opsets = weights, list(model.opset_import)
        self.step = Level()
        self.values = ValueTable(self.step)
        random = (node for node in in_order(model.graph.node) if node.op_type in RANDOM)
        self._numbers = {node.output[0]: number for number, node in enumerate(random)}
        if [node.op_type for node in model.graph.node] != ["Scan"]:
            raise refused("nodes around the steps of an epoch")
        [scan] = model.graph.node
        types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
        inputs = [(name, shapes[name], onnx.helper.tensor_dtype_to_np_dtype(types[name]), None) for name in scan.input]
        self._steps(scan, inputs, self._constants(model.graph), self.step)

    def _constants(self, graph: onnx.GraphProto) -> dict[str, Value]:
        values = dict[str, Value]()
        for tensor in graph.initializer:
            array = self._weights.get(tensor.name)
            values[tensor.name] = self.values.constant(onnx.numpy_helper.to_array(tensor) if array is None else array)
            values[tensor.name].name = tensor.name
        return values

    def _run(self, graph: onnx.GraphProto, outer: Mapping[str, Value], level: Level) -> list[Value]:
        values = {**outer, **self._constants(graph)}
        values |= {value.name: outer[value.name] for value in graph.input}
        for proto in graph.node:
            inputs = [values[name] if name else None for name in proto.input]
            self.values.name = proto.output[0]
            try:
                results = self._node(proto, inputs, values, level)
            except NotCompiled as error:
                raise refused(f"{proto.op_type} {proto.name or proto.output[0]!r}: {error}") from error
            for name, value in zip(proto.output, results, strict=False):
                values[name] = value
                value.name = name if value.name == proto.output[0] else value.name
        return [values[output.name] for output in graph.output]

    def _steps(
        self,
        scan: onnx.NodeProto,
        inputs: Sequence[tuple[str, tuple[int, ...], Any, Value | None]],
        values: Mapping[str, Value],
        level: Level,
    ) -> None:
        """Read a Scan's body; its inputs are a name, the shape in one step, a type and the value of all steps."""
        body, inner = attributes_of(scan)["body"], dict(values)
        count = len(states_of(scan))
        for number, (value, (name, shape, dtype, x)) in enumerate(zip(body.input, inputs, strict=True)):
            kind = "state" if number < count else "row"
            args = [] if x is None or kind == "state" else [x]
            inner[value.name] = self.values.make(kind, shape, dtype, *args, info=number, level=level)
            inner[value.name].name = name
        level.states = [inner[value.name] for value in body.input[:count]]
        results = self._run(body, inner, level)
        level.following, level.outputs = results[:count], results[count:]

    def _node(
        self, proto: onnx.NodeProto, inputs: list[Value | None], values: Mapping[str, Value], level: Level
    ) -> tuple[Value, ...]:
        op = proto.op_type
        present = [x for x in inputs if x is not None]
        if op == "Scan":
            return self._scan(proto, present, values, level)
        varies = [x.kind != "constant" and op not in SHAPES for x in present]
        if op in SIZES and any(varies):
            raise NotCompiled("an operand computed while it runs")
        try:
            if op in SIZES or not (op in UNFOLDED or any(varies)):
                arrays = [np.zeros(x.shape, x.dtype) if op in SHAPES else x.info for x in present]
                results = self._evaluated(proto, arrays)
                if op not in MOVES or not any(_repeats(y, arrays[0]) for y in results):
                    return tuple(map(self.values.constant, results))
            if op in MOVES - UNFOLDED and not any(varies[1:]):
                numbers = np.arange(present[0].size).reshape(present[0].shape)
                places = self._evaluated(proto, [numbers, *(x.info for x in present[1:])])
                return tuple(picked(self.values, present[0], array) for array in places)
        except NotCompiled:
            if op not in OPERATORS:
                raise
        if op not in OPERATORS:
            raise NotCompiled("an operand computed while it runs")
        count = max((i for i, name in enumerate(proto.output, 1) if name), default=0)
        attributes = {**defaults(op, self._opsets[0].version), **attributes_of(proto)}
        node = NodeForm(attributes, count, level, self._numbers.get(proto.output[0], 0))
        result = OPERATORS[op](self.values, node, *inputs)
        return result if isinstance(result, tuple) else (result,)

    def _evaluated(self, proto: onnx.NodeProto, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the results of a node for constants."""
        names = [name for name in proto.input if name]
        values = [onnx.helper.make_tensor_value_info(name, 0, None) for name in names]
        ends = [onnx.helper.make_tensor_value_info(name, 0, None) for name in proto.output]
        graph = onnx.helper.make_graph([proto], "constant", values, ends)
        try:
            session = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=self._opsets))
            return [np.asarray(array) for array in session.run(None, dict(zip(names, arrays, strict=True)))]
        except Exception as error:  # it raises any
            raise NotCompiled(f"constants that onnx's evaluator does not support: {error}") from error

    def _scan(
        self, proto: onnx.NodeProto, inputs: list[Value], values: Mapping[str, Value], outer: Level
    ) -> tuple[Value, ...]:
        """Return the results of a Scan inside the step."""
        if any(any(value) for name, value in attributes_of(proto).items() if name.startswith("scan_")):
            raise NotCompiled("another axis or direction")
        count = len(states_of(proto))
        steps = inputs[count].shape[0]
        level = Level(outer, steps)
        self._steps(proto, [(x.name, x.shape[i >= count :], x.dtype, x) for i, x in enumerate(inputs)], values, level)
        scan = self.values.make("scan", (), bool, *inputs[:count], info=level, level=outer)
        shapes = [x.shape for x in level.following] + [(steps, *x.shape) for x in level.outputs]
        level.results = [
            self.values.make("result", shape, x.dtype, scan, info=number)
            for number, (shape, x) in enumerate(zip(shapes, level.following + level.outputs, strict=True))
        ]
        return tuple(level.results)


def _repeats(result: np.ndarray, x: np.ndarray) -> bool:
    """Return whether a long constant holds several numbers many times, so that a view of them takes less memory."""
    return result.size > max(SMALL, x.size) and x.size > 1


def states_of(scan: onnx.NodeProto) -> list[str]:
    """Return the names of a Scan's inputs that it carries from step to step; it reads the others by step."""
    return list(scan.input[: len(scan.input) - attributes_of(scan)["num_scan_inputs"]])


def attributes_of(proto: onnx.NodeProto) -> dict[str, Any]:
    """Return attributes as Python values."""
    values = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


@functools.cache
def defaults(op: str, version: int) -> dict[str, Any]:
    """Return the default values of an operator's attributes."""
    attributes = onnx.defs.get_schema(op, version).attributes.values()
    return attributes_of(onnx.NodeProto(attribute=[a.default_value for a in attributes if a.default_value.name]))
