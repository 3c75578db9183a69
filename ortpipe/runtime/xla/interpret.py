"""A graph as a function of JAX arrays: evaluate its nodes in order, each by its operator's function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import onnx

from ortpipe.errors import EngineError
from ortpipe.runtime.node_order import in_order, subgraphs, unsupported
from ortpipe.runtime.xla.node import Array, Node, Unsupported, check_numbers
from ortpipe.runtime.xla.operators import OPERATORS
from ortpipe.runtime.xla.operators.random import OPERATORS as RANDOM

FOLDED = 2**16  # constant results with at most so many entries are computed during tracing
Values = dict[str, Array]


def refused(what: str) -> EngineError:
    """Return the error for a graph that cannot be compiled."""
    return EngineError(
        "{key}=xla compiles standard operators whose sizes are known before the run.",
        got=what,
        fix="Set {key}=onnxruntime, which supports all of them.",
        key="engine",
    )


def check_operators(model: onnx.ModelProto) -> None:
    """Raise if a model has operators that are not in the table, naming each."""
    if (what := unsupported(model, OPERATORS)) is not None:
        raise refused(what)


@dataclass
class Interpreter:
    """Runs a model's graphs.

    Attributes:
        model: a model whose operators are all in the table.
        weights: initializer → value, for those without a value in the model.
        instead: a function that replaces a node, by operator for nodes of the outermost graph, by name for others.
        key: the key of this step's random numbers; None if none are drawn.
    """

    model: onnx.ModelProto
    weights: Mapping[str, np.ndarray]
    instead: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    key: Any = None

    def __post_init__(self) -> None:
        random = (node for node in in_order(self.model.graph.node) if node.op_type in RANDOM)
        self._numbers = {node.output[0]: number for number, node in enumerate(random)}  # numbers of random nodes

    def run(
        self, graph: onnx.GraphProto, arguments: Sequence[Array], outer: Mapping[str, Array] | None = None
    ) -> list[Array]:
        """Return a graph's outputs for arrays as inputs; `outer` has the values that an inner graph captures."""
        values: Values = dict(outer or {})
        for tensor in graph.initializer:
            values[tensor.name] = (
                self.weights[tensor.name] if tensor.name in self.weights else onnx.numpy_helper.to_array(tensor)
            )
        values |= zip((value.name for value in graph.input), arguments, strict=True)
        for node in graph.node:
            try:
                results = self._node(node, values, outermost=outer is None)
            except Unsupported as error:
                raise refused(f"{node.op_type} {node.name or node.output[0]!r}: {error}") from error
            values |= zip(node.output, results, strict=False)
        return [values[output.name] for output in graph.output]

    def _node(self, proto: onnx.NodeProto, values: Values, *, outermost: bool) -> tuple[Array, ...]:
        inputs = [values[name] if name else None for name in proto.input]
        for x in inputs:
            check_numbers(x)
        function = OPERATORS[proto.op_type]
        node = Node(
            proto.op_type,
            {a.name: _value(a) for a in proto.attribute},
            max((i for i, name in enumerate(proto.output, 1) if name), default=0),
            lambda graph, *arguments, number=None: self._inner(graph, arguments, values, number),
            lambda: self._key(proto),
        )
        if (instead := self.instead.get(proto.op_type if outermost else proto.name)) is not None:
            return _several(instead(node, *inputs))
        constant = all(x is None or isinstance(x, np.ndarray | np.generic) for x in inputs)
        if constant and proto.op_type not in RANDOM and not subgraphs(proto) and _is_small(function, node, inputs):
            with jax.ensure_compile_time_eval():
                return _several(function(node, *inputs), np.asarray)
        return _several(function(node, *inputs))

    def _inner(
        self, graph: onnx.GraphProto, arguments: Sequence[Array], values: Values, number: Array | None
    ) -> list[Array]:
        outer = self.key
        if number is not None and outer is not None:
            self.key = jax.random.fold_in(outer, number)
        try:
            return self.run(graph, arguments, values)
        finally:
            self.key = outer

    def _key(self, proto: onnx.NodeProto) -> Any:
        if self.key is None:
            raise Unsupported("random numbers without a seed")
        return jax.random.fold_in(self.key, self._numbers[proto.output[0]])


def _is_small(function: Callable[..., Any], node: Node, inputs: Sequence[Array]) -> bool:
    """Return whether the result of a node with constant inputs is small enough to become a constant."""
    if sum(x.size for x in inputs if x is not None) > FOLDED:
        return False
    shapes = jax.eval_shape(lambda: _several(function(node, *inputs)))
    return sum(np.prod(x.shape) for x in shapes) <= FOLDED


def _several(result: Any, of_each: Callable[[Any], Any] = lambda x: x) -> tuple[Array, ...]:
    return tuple(map(of_each, result)) if isinstance(result, tuple | list) else (of_each(result),)


def _value(attribute: onnx.AttributeProto) -> Any:
    """Return an attribute as a Python value, a tensor as an array."""
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value) if value.data_type != onnx.TensorProto.STRING else value
    return list(value) if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS) else value
