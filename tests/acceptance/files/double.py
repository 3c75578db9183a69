"""A model in float64: for differences that rounding does not hide."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from scipy import special

TO = {"Cast": "to", "RandomNormal": "dtype", "RandomUniform": "dtype", "EyeLike": "dtype"}
PLACES = 16  # of a kernel, that one matrix product takes
SMALLER = (TensorProto.FLOAT, TensorProto.FLOAT16)


def as_double(model: ModelProto) -> ModelProto:
    """Return the model with float64 wherever it has float32 or float16."""
    double = ModelProto()
    double.CopyFrom(model)
    _graph(double.graph)
    for function in double.functions:
        for node in function.node:
            _node(node)
    return double


def _graph(graph: GraphProto) -> None:
    for tensor in graph.initializer:
        _tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in SMALLER:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        _node(node)


def _node(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            _tensor(attribute.t)
        elif attribute.type == AttributeProto.GRAPH:
            _graph(attribute.g)
        elif attribute.name == TO.get(node.op_type) and attribute.i in SMALLER:
            attribute.i = TensorProto.DOUBLE
    names = {a.name: a for a in node.attribute}
    if node.op_type == "ConstantOfShape" and "value" not in names:
        zero = numpy_helper.from_array(np.zeros(1, np.float64))
        node.attribute.append(onnx.helper.make_attribute("value", zero))
    if node.op_type == "Constant" and (single := names.get("value_float") or names.get("value_floats")):
        numbers = single.f if single.name == "value_float" else list(single.floats)
        node.attribute.remove(single)
        node.attribute.append(
            onnx.helper.make_attribute("value", numpy_helper.from_array(np.array(numbers, np.float64)))
        )


def _tensor(tensor: TensorProto) -> None:
    if tensor.data_type in SMALLER:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


class Reference:
    """A model run by onnx's own evaluator, in NumPy and so in float64; where few inputs change, only what reads them.

    Raises:
        RuntimeError: and whatever else the evaluator does, where it has no implementation of an operator.
    """

    def __init__(self, model: ModelProto) -> None:
        self._evaluator = ReferenceEvaluator(model, new_ops=[Conv, Erf, GatherElements, GlobalMaxPool, MaxPool])
        self._fed: dict[str, np.ndarray] = {}
        self._values: dict[str, Any] = {}

    def run(self, feeds: Mapping[str, np.ndarray], output: str) -> np.ndarray:
        """Return an output. Of the first call every value is kept, and a later one computes what differs from it."""
        first = not self._values
        changed = {name for name, array in feeds.items() if array is not self._fed.get(name)}
        values = {"": None, **self._evaluator.rt_inits_, **self._values, **feeds}
        with np.errstate(all="ignore"):
            for node in self._evaluator.rt_nodes_:
                inner = node.need_context()  # a graph inside, which may read anything
                if first or inner or not changed.isdisjoint(node.input):
                    inputs = [values[name] for name in node.input]
                    outputs = node.run(*inputs, **({"context": values} if inner else {}))
                    values.update(zip(node.output, outputs, strict=False))
                    changed.update(filter(None, node.output))
        if first:
            self._fed, self._values = dict(feeds), values
        return values[output]


class Erf(OpRun):
    """The error function: onnx's own computes it in float32."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (special.erf(x),)


class GatherElements(OpRun):
    """Elements by their index along an axis: onnx's own takes at most 64 of them."""

    op_domain = ""

    def _run(self, x: np.ndarray, indices: np.ndarray, axis: int = 0) -> tuple[np.ndarray]:
        return (np.take_along_axis(x, np.where(indices < 0, indices + x.shape[axis], indices), axis),)


class GlobalMaxPool(OpRun):
    """The largest of each channel: onnx's own takes pictures only."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class MaxPool(OpRun):
    """The largest of each window: onnx's own looks at one output after the other."""

    op_domain = ""

    def _run(self, x: np.ndarray, **given: Any) -> tuple[np.ndarray]:
        return (functools.reduce(np.maximum, (part for _, part in _parts(x, given["kernel_shape"], -np.inf, given))),)


class Conv(OpRun):
    """A sum of matrix products, each over some of the kernel's places; onnx's own copies every window at once."""

    op_domain = ""

    def _run(self, x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, **given: Any) -> tuple[np.ndarray]:
        groups, total, sizes = given["group"] or 1, None, ()
        kernel = w.reshape(groups, -1, *w.shape[1:])  # [G, O/G, C/G, …]
        parts = _parts(x, w.shape[2:], 0.0, given)
        while some := list(itertools.islice(parts, PLACES)):
            sizes = some[0][1].shape[2:]
            columns = np.concatenate([p.reshape(len(x), groups, w.shape[1], -1) for _, p in some], axis=2)
            product = np.concatenate([kernel[(..., *place)] for place, _ in some], axis=2) @ columns
            total = product if total is None else total + product
        assert total is not None
        result = total.reshape(len(x), len(w), *sizes)
        return (result if b is None else result + b.reshape(-1, *[1] * len(sizes)),)


def _parts(
    x: np.ndarray, kernel: Sequence[int], fill: float, given: Mapping[str, Any]
) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Yield for each place in a window what all windows have there, [N, C, …]."""
    sizes, steps = x.shape[2:], given["strides"] or [1] * len(kernel)
    spread, auto = given["dilations"] or [1] * len(kernel), given["auto_pad"] or "NOTSET"
    pads = given["pads"] if given["pads"] and auto == "NOTSET" else [0] * 2 * len(kernel)
    edges, counts = [], []
    for i, (n, k, s, d) in enumerate(zip(sizes, kernel, steps, spread, strict=True)):
        begin, end, window = pads[i], pads[i + len(kernel)], (k - 1) * d + 1
        if auto.startswith("SAME"):
            rest = max(0, (-(-n // s) - 1) * s + window - n)
            begin, end = (rest // 2, -(-rest // 2)) if auto == "SAME_UPPER" else (-(-rest // 2), rest // 2)
        count = (n + begin + end - window) // s + 1
        if given.get("ceil_mode") and (n + begin + end - window) % s and count * s < n + begin:
            count, end = count + 1, count * s + window - n - begin  # the last window begins inside, and goes beyond
        edges.append((begin, end))
        counts.append(count)
    wide = np.pad(x, [(0, 0), (0, 0), *edges], constant_values=fill)
    for place in np.ndindex(*kernel):
        begins = [p * d for p, d in zip(place, spread, strict=True)]
        cut = [slice(b, b + (c - 1) * s + 1, s) for b, c, s in zip(begins, counts, steps, strict=True)]
        yield place, wide[(..., *cut)]
