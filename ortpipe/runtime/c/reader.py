"""Read an epoch graph as values: its Scan becomes a level, each node the values of its operator."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from ortpipe.graph.core.operators import having
from ortpipe.runtime.c.operators import OPERATORS
from ortpipe.runtime.c.values import Level, NotCompiled, Value, ValueTable, refused
from ortpipe.runtime.node_order import in_order, unsupported

RANDOM = having("random")
SOURCES = {  # whose values follow from constants and shapes; a fact about this engine: it has no C for them
    "Constant",
    "ConstantOfShape",
    "EyeLike",
    "NonZero",
    "Range",
    "Shape",
    "Size",
}
FOLDED = 2**16  # constant results with more entries are computed in C


@dataclass(frozen=True)
class NodeForm:
    """A node without its inputs; `number` counts nodes that draw at random."""

    op: str
    attributes: Mapping[str, Any]
    outputs: int
    level: Level
    number: int

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or the default if it is missing."""
        return self.attributes.get(name, default)


def check_operators(model: onnx.ModelProto) -> None:
    """Raise if a model has operators that are not compiled, naming each."""
    if (what := unsupported(model, {*OPERATORS, *SOURCES, "Scan"})) is not None:
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
        self._model, self._weights = model, weights
        self._opset = [(o.domain, o.version) for o in model.opset_import]
        self.top = Level()
        self.step = Level(self.top)
        self.values = ValueTable(self.top)
        random = (node for node in in_order(model.graph.node) if node.op_type in RANDOM)
        self._numbers = {node.output[0]: number for number, node in enumerate(random)}
        if [node.op_type for node in model.graph.node] != ["Scan"]:
            raise refused("nodes around the steps of an epoch")
        [scan] = model.graph.node
        body, count = _body(scan)
        self.states = list(scan.input[: len(scan.input) - count])
        self.rows = list(scan.input[len(scan.input) - count :])
        values = self._constants(model.graph)
        types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
        for number, (name, inner) in enumerate(zip(scan.input, body.input, strict=True)):
            kind = "state" if number < len(self.states) else "row"
            dtype = onnx.helper.tensor_dtype_to_np_dtype(types[name])
            values[inner.name] = self.values.make(kind, shapes[name], dtype, info=number, level=self.step)
            values[inner.name].name = name
            if kind == "state":
                self.step.states.append(values[inner.name])
        results = self._run(body, values, self.step)
        self.step.following = results[: len(self.states)]
        self.step.outputs = results[len(self.states) :]

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

    def _node(
        self, proto: onnx.NodeProto, inputs: list[Value | None], values: Mapping[str, Value], level: Level
    ) -> tuple[Value, ...]:
        op = proto.op_type
        if op == "Scan":
            return self._scan(proto, [x for x in inputs if x is not None], values, level)
        if op in ("Shape", "Size"):
            inputs = [self.values.constant(np.empty(x.shape, bool)) for x in inputs if x is not None]
        size = sum(x.size for x in inputs if x is not None)
        folds = op not in RANDOM and all(x is None or x.kind == "constant" for x in inputs) and size <= FOLDED
        if op in SOURCES:
            return self._folded(proto, inputs)
        if folds:
            with contextlib.suppress(Exception):  # forms that onnx's evaluator does not support are computed in C
                return self._folded(proto, inputs)
        count = max((i for i, name in enumerate(proto.output, 1) if name), default=0)
        attributes = {a.name: _value(a) for a in proto.attribute}
        node = NodeForm(op, attributes, count, level, self._numbers.get(proto.output[0], 0))
        result = OPERATORS[op](self.values, node, *inputs)
        return result if isinstance(result, tuple) else (result,)

    def _folded(self, proto: onnx.NodeProto, inputs: list[Value | None]) -> tuple[Value, ...]:
        """Return the constant results of a node."""
        if any(x is not None and x.kind != "constant" for x in inputs):
            raise NotCompiled("a size computed while it runs")
        names = [name for name in proto.input if name]
        arrays = [x.info for x in inputs if x is not None]
        values = [onnx.helper.make_tensor_value_info(name, 0, None) for name in names]
        ends = [onnx.helper.make_tensor_value_info(name, 0, None) for name in proto.output]
        opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in self._opset]
        graph = onnx.helper.make_graph([proto], "constant", values, ends)
        session = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets))
        return tuple(self.values.constant(array) for array in session.run(None, dict(zip(names, arrays, strict=True))))

    def _scan(
        self, proto: onnx.NodeProto, inputs: list[Value], values: Mapping[str, Value], outer: Level
    ) -> tuple[Value, ...]:
        """Return the results of a Scan inside the step."""
        body, count = _body(proto)
        if any(a.name.startswith("scan_") and any(a.ints) for a in proto.attribute):
            raise NotCompiled("another axis or direction")
        states, rows = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
        level, inner = Level(outer, rows[0].shape[0]), dict(values)
        for number, (x, value) in enumerate(zip(inputs, body.input, strict=True)):
            kind, shape = ("state", x.shape) if number < len(states) else ("row", x.shape[1:])
            placeholder = self.values.make(
                kind, shape, x.dtype, *([x] if kind == "row" else []), info=number, level=level
            )
            placeholder.name = placeholder.name or value.name
            inner[value.name] = placeholder
            if kind == "state":
                level.states.append(placeholder)
        results = self._run(body, inner, level)
        level.following, level.outputs = results[: len(states)], results[len(states) :]
        scan = self.values.make("scan", (), bool, *states, info=level, level=outer)
        shapes = [x.shape for x in level.following] + [(rows[0].shape[0], *x.shape) for x in level.outputs]
        level.results = [
            self.values.make("result", shape, x.dtype, scan, info=number)
            for number, (shape, x) in enumerate(zip(shapes, results, strict=True))
        ]
        return tuple(level.results)


def _body(scan: onnx.NodeProto) -> tuple[onnx.GraphProto, int]:
    """Return a Scan's body, and the number of inputs that it reads step by step."""
    attributes = {a.name: a for a in scan.attribute}
    return attributes["body"].g, int(attributes["num_scan_inputs"].i)


def _value(attribute: onnx.AttributeProto) -> Any:
    """Return an attribute as a Python value, a tensor as an array."""
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return list(value) if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS) else value
