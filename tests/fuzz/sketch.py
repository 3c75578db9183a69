"""A graph while it grows: every node is computed as it is written, so that its shape and its values are known."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fuzz.reference import OPERATORS, as_double

LARGEST, MOST = 50.0, 600  # entries above this, and more of them, are no small graph's
Shape = Sequence[int]


class Rejected(Exception):
    """What was drawn is no node here: another opset, or values out of an operator's domain."""


class Sketch:
    """Nodes, sources and the values of all of them; a subgraph is a sketch that shares everything but its nodes."""

    def __init__(self, rng: np.random.Generator, opset: int, around: Sketch | None = None) -> None:
        self.rng, self.opset, self.around = rng, opset, around
        self.nodes: list[NodeProto] = []
        self.pool: list[str] = []  # float values that gradients reach something from
        self.values: dict[str, Any] = around.values if around else {}
        self.inputs: dict[str, np.ndarray] = around.inputs if around else {}
        self.parameters: dict[str, np.ndarray] = around.parameters if around else {}
        self.constants: dict[str, np.ndarray] = around.constants if around else {}
        self.counts: Any = around.counts if around else itertools.count(1)

    # Drawing.
    def flag(self, chance: float = 0.5) -> bool:
        """Return True with a chance."""
        return bool(self.rng.random() < chance)

    def choose(self, options: Iterable[Any]) -> Any:
        """Return one of them."""
        options = list(options)
        if not options:
            raise Rejected
        return options[int(self.rng.integers(len(options)))]

    def size(self, low: int, high: int) -> int:
        """Return a whole number, high among them."""
        return int(self.rng.integers(low, high + 1))

    def shape(self, rank: int) -> list[int]:
        """Return sizes of a rank."""
        return [self.size(1, 4 if rank > 2 else 5) for _ in range(rank)]

    def numbers(self, shape: Shape) -> np.ndarray:
        """Return numbers around 0 that float32 holds exactly."""
        return np.asarray(self.rng.normal(size=tuple(shape))).astype(np.float32).astype(np.float64)

    # Sources.
    def const(self, array: Any, dtype: Any = np.int64) -> str:
        """Return a constant that nothing differentiates."""
        name = self._name("c")
        self.constants[name] = self.values[name] = np.asarray(array, dtype)
        return name

    def number(self, value: float) -> str:
        """Return a float constant of rank 0."""
        return self.const(value, np.float64)

    def source(self, shape: Shape) -> str:
        """Return a new input or parameter."""
        name = self._name("x" if (fed := self.flag()) else "w")
        (self.inputs if fed else self.parameters)[name] = self.values[name] = self.numbers(shape)
        return name

    def x(self, rank: int | None = None, least: int = 0, most: int = 4, shape: Shape | None = None) -> str:
        """Return a float value: one of the last that fits, mostly, else a new source with something added to it."""
        wanted = range(least, most + 1) if rank is None else [rank]
        fits = [v for v in self.pool if self.rank(v) in wanted and (shape is None or self.of(v) == list(shape))]
        if fits and not self.flag(0.1):
            return fits[-1] if self.flag() else self.choose(fits)
        sizes = shape if shape is not None else self.shape(self.choose([r for r in wanted if r or rank == 0 or least]))
        new = self.source(sizes)
        if not self.pool or self.flag(0.3):
            return new
        old = self.choose(self.pool)
        mean = old if not self.rank(old) else self.op("ReduceMean", [old], keepdims=0)
        return self.op(self.choose(["Add", "Mul"]), [new, mean])

    def like(self, x: str) -> str:
        """Return another value that broadcasts with x."""
        same = [v for v in self.pool if v != x and self.of(v) == self.of(x)]
        if same and self.flag(0.6):
            return self.choose(same)
        sizes = [1 if self.flag(0.3) else n for n in self.of(x)]
        return self.source(sizes[self.size(0, len(sizes)) :] if self.flag(0.3) else sizes)

    def rank(self, name: str) -> int:
        """Return a value's rank."""
        return len(self.of(name))

    def of(self, name: str) -> list[int]:
        """Return a value's shape."""
        return list(np.shape(self.values[name]))

    def axis(self, x: str) -> int:
        """Return an axis of a value, counted from either end."""
        rank = self.rank(x)
        if not rank:
            raise Rejected
        return self.size(-rank, rank - 1)

    # Domains: the values become what an operator is defined on, smoothly.
    def positive(self, x: str) -> str:
        """Return values between 0.3 and 1.3."""
        return self.op("Add", [self.op("Sigmoid", [x]), self.number(0.3)])

    def unit(self, x: str) -> str:
        """Return values between −0.9 and 0.9."""
        return self.op("Mul", [self.op("Tanh", [x]), self.number(0.9)])

    def above(self, x: str) -> str:
        """Return values between 1.1 and 2.1."""
        return self.op("Add", [self.op("Sigmoid", [x]), self.number(1.1)])

    # Nodes.
    def op(self, kind: str, inputs: Sequence[str | None], outputs: int = 1, **attributes: Any) -> Any:
        """Write a node; return its output's name, or a list of several."""
        try:
            deprecated = onnx.defs.get_schema(kind, self.opset).deprecated
        except onnx.defs.SchemaError:
            deprecated = True
        if deprecated:
            raise Rejected(f"{kind} at opset {self.opset}")
        inputs = [i or "" for i in inputs]
        while inputs and not inputs[-1]:
            inputs.pop()
        names = [self._name(kind.lower()) for _ in range(outputs)]
        node = helper.make_node(kind, inputs, names, **attributes)
        self.values.update(zip(names, self._computed(node), strict=True))
        self.nodes.append(node)
        return names[0] if outputs == 1 else names

    def _computed(self, node: NodeProto) -> list[Any]:
        reads = [name for name in read_by(node) if name in self.values]
        unknown = [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in [*reads, *node.output]]
        graph = helper.make_graph([node], "one", unknown[: len(reads)], unknown[len(reads) :])
        model = as_double(helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)]))
        try:
            with np.errstate(all="ignore"):
                found = ReferenceEvaluator(model, new_ops=OPERATORS).run(None, {n: self.values[n] for n in reads})
        except Exception as error:
            raise Rejected(f"{node.op_type}: {error}") from error
        for array in found:
            for one in array if isinstance(array, list) else [array]:
                one = np.asarray(one)
                sound = one.dtype.kind != "f" or (np.isfinite(one).all() and np.abs(one).max(initial=0) < LARGEST)
                if not sound or not 0 < one.size <= MOST:
                    raise Rejected(f"{node.op_type}: values")
        return found

    def inner(self) -> Sketch:
        """Return the sketch of a subgraph."""
        return Sketch(self.rng, self.opset, self)

    def placeholder(self, value: Any) -> str:
        """Return an input of this subgraph, which has this value at first."""
        name = self._name("i")
        self.values[name] = np.asarray(value)
        return name

    def body(self, inputs: Sequence[str], outputs: Sequence[str]) -> GraphProto:
        """Return a subgraph."""
        return helper.make_graph(self.nodes, self._name("body"), *self._infos(inputs, outputs))

    def _infos(self, *groups: Iterable[str], names: dict[int, str] | None = None) -> list[list[onnx.ValueInfoProto]]:
        def info(name: str) -> onnx.ValueInfoProto:
            array = np.asarray(self.values[name])
            dims = [(names or {}).get(n, n) for n in array.shape]
            return helper.make_tensor_value_info(name, element(array), dims)

        return [[info(name) for name in group] for group in groups]

    def _name(self, kind: str) -> str:
        return f"{kind}{next(self.counts)}"

    def mark(self) -> int:
        """Return where the sketch is, for `back`."""
        return len(self.nodes)

    def back(self, mark: int) -> None:
        """Take out the nodes behind a mark."""
        del self.nodes[mark:]

    def model(self, outputs: Sequence[str], free: bool) -> ModelProto:
        """Return the model, in float32; with `free`, sizes of inputs and outputs are names where they are not 1."""
        nodes, needed = [], set(outputs)
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                nodes.append(node)
                needed.update(read_by(node))
        tensors = [
            numpy_helper.from_array(a.astype(np.float32) if a.dtype == np.float64 else a, name)
            for name, a in {**self.parameters, **self.constants}.items()
            if name in needed
        ]
        names = {n: f"size{n}" for n in range(2, 100)} if free else {}
        fed = self._infos([n for n in self.inputs if n in needed], names=names)[0]
        ends = self._infos(outputs, names=names)[0]
        graph = helper.make_graph(nodes[::-1], "fuzzed", fed, ends, initializer=tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        model.ir_version = 10 if self.opset > 18 else 8
        return model


def element(array: np.ndarray) -> int:
    """Return a value's type in the float32 model."""
    return TensorProto.FLOAT if array.dtype == np.float64 else helper.np_dtype_to_tensor_dtype(array.dtype)


def read_by(node: NodeProto, without: Collection[str] = ()) -> list[str]:
    """Return what a node reads, its subgraphs' values of outside among it, but for what nodes `without` read there."""
    names = dict.fromkeys(n for n in node.input if n)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            graph = attribute.g
            own = {i.name for i in graph.input} | {o for n in graph.node for o in n.output}
            inner = [name for n in graph.node if n.op_type not in without for name in read_by(n, without)]
            inner += [o.name for o in graph.output]
            names.update(dict.fromkeys(n for n in inner if n not in own))
    return list(names)
