"""Fake quantization: what products read is rounded to 8 bits and back, in the graph that is trained.

    x ← DequantizeLinear(QuantizeLinear(x, s, z), s, z)

Activations are uint8 per tensor, s = (max - min) / 255 with 0 in the range, as the training rows give them. Weights are
int8 per channel, s = max|w| / 127 and z = 0, of the weights as they are at each step. That is the form which
onnxruntime's kernels of integers take on every processor. Of the operators that its quantizer chooses these are the
ones that have such kernels and hold, or carry, what products read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.data.feeds import feed_inputs
from ortpipe.data.rows import Rows
from ortpipe.errors import ConvertError
from ortpipe.facts import Facts
from ortpipe.graph import query
from ortpipe.graph.builder import Builder, Names, used_names
from ortpipe.graph.check import finish, infer
from ortpipe.graph.edit import keep_outputs
from ortpipe.graph.int8 import computed_from_weights
from ortpipe.graph.modes import to_inference
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.dialects.integers import same

ROWS, PIECE = 512, 64
PRODUCTS = ("Conv", "Gemm", "MatMul")
JOINING = ("Add", "AveragePool", "Concat", "GlobalAveragePool", "Mul")  # between products, of activations alone
MOVES = ("Flatten", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze")  # which keep scale and zero point
CUTS = ("Relu", "Clip")  # within the range of what is rounded behind them
LEAST = 1e-8  # of a scale: a channel of zeros has one, too


@dataclass(frozen=True)
class Quantized:
    """What came of it."""

    scales: tuple[str, ...]  # initializers, of activations
    note: str


def calibration_rows(rows: Rows) -> Rows:
    """Return the rows that ranges are measured on, evenly spaced."""
    return rows.take(np.unique(np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).astype(int)))


def quantize(model: ir.Model, facts: Facts, rows: Rows) -> Quantized:
    """Write in place pairs of QuantizeLinear and DequantizeLinear around the products of a model.

    Args:
        model: whose outputs keep their names.
        facts: what its inputs are.
        rows: that ranges are measured on.

    Raises:
        ConvertError: it has no product with weights, not of float32, or gives values that are not finite.
    """
    graph = model.graph
    fixed = computed_from_weights(graph)
    products = [n for n in graph if n.op_type in PRODUCTS and not n.domain and not fixed.issuperset(n.inputs[:2])]
    if not any(x in fixed for node in products for x in node.inputs[:2]):
        rule, fix = "convert.quantize rounds what products with weights read.", "Leave out {key}."
        raise ConvertError(rule, key="quantize", got=f"no {', '.join(PRODUCTS)} with weights", fix=fix)
    if wrong := next((n for n in products if n.outputs[0].dtype != ir.DataType.FLOAT), None):
        raise ConvertError(
            "QuantizeLinear rounds float32.",
            key="quantize",
            got=f"{query.called(wrong)} of type {wrong.outputs[0].dtype}",
            fix="Set {at}dtype=float32 for an estimator, {at}source.dtype=float32 for a file.",
        )
    roots = _roots(graph, products, fixed)
    ranges = _ranges(model, facts, rows, [str(x.name) for x in dict.fromkeys(roots.values())])
    names = Names(used_names(graph))
    weights = _quantize_weights(graph, products, fixed, names)
    scales = _quantize_activations(graph, roots, ranges, names)
    infer(model)
    return Quantized(
        tuple(scales),
        f"rounds {weights} weights (int8, per channel) and {len(roots)} activations (uint8, ranges of {len(rows)} "
        f"training rows) of {len(products)} products; the run's folder gets model.int8.onnx, whose kernels compute so",
    )


def _roots(graph: ir.Graph, products: list[ir.Node], fixed: set[ir.Value]) -> dict[ir.Value, ir.Value]:
    """Return the activations that are rounded, each with the one whose range it has."""
    wanted: dict[ir.Value, ir.Value] = {}
    dropped = set[ir.Value]()

    def want(values: Iterable[ir.Value | None]) -> None:
        wanted.update({x: x for x in values if x is not None and x not in fixed and x.dtype == ir.DataType.FLOAT})

    chosen = set(products)
    for node in reversed(graph):
        if node.domain:
            continue
        y = node.outputs[0]
        if node in chosen:
            want(node.inputs[:2])
            if node.op_type == "Conv":  # its kernel of integers gives integers; of the others there are both
                want([_end(_end(y, ("BatchNormalization",)), CUTS)])
        elif y in wanted and node.op_type in JOINING and fixed.isdisjoint(node.inputs):
            want(node.inputs)
        elif y in wanted and node.op_type in MOVES and node.inputs[0] not in fixed:
            assert node.inputs[0] is not None
            wanted[y] = node.inputs[0]
            want(node.inputs[:1])
        elif y in wanted and node.op_type == "Dropout":  # which makes larger in training what it lets through
            assert node.inputs[0] is not None
            wanted[y] = node.inputs[0]
            dropped.add(y)
            want(node.inputs[:1])
    found = {x: _way(x, wanted) for x in reversed(wanted)}
    return {x: way[-1] for x, way in found.items() if dropped.isdisjoint(way)}


def _end(y: ir.Value, kinds: Sequence[str]) -> ir.Value:
    """Return what the only reader of a value makes of it, if it is of these kinds; else the value."""
    uses = y.uses()
    if len(uses) != 1 or y.is_graph_output():
        return y
    [(node, place)] = uses
    return node.outputs[0] if node.op_type in kinds and place == 0 else y


def _way(x: ir.Value, wanted: Mapping[ir.Value, ir.Value]) -> list[ir.Value]:
    """Return a value and what it is moved from, to the one whose range it has."""
    way = [x]
    while wanted[way[-1]] is not way[-1]:
        way.append(wanted[way[-1]])
    return way


def _ranges(model: ir.Model, facts: Facts, rows: Rows, names: list[str]) -> dict[str, tuple[float, float]]:
    """Return the least and the largest number of each value; 0 is among them."""
    inner = [name for name in names if name not in facts.inputs]
    own = model.clone()
    to_inference(own)
    inputs = feed_inputs(finish(own), facts, rows)
    keep_outputs(own, inner)
    read = {str(x.name) for x in query.data_inputs(own.graph)}
    session = Session(ir.to_proto(own)) if inner else None
    found = dict.fromkeys(names, (0.0, 0.0))
    for start in range(0, len(rows), PIECE):
        piece = {name: array[start : start + PIECE] for name, array in inputs.items()}
        arrays = [] if session is None else session.run({k: v for k, v in piece.items() if k in read}, inner)
        for name, array in {**piece, **dict(zip(inner, arrays, strict=True))}.items():
            if name in found:
                found[name] = min(found[name][0], float(array.min())), max(found[name][1], float(array.max()))
    if wrong := [name for name, pair in found.items() if not np.isfinite(pair).all()]:
        raise ConvertError(
            "What is quantized has a finite range.",
            key="quantize",
            got=f"nan or infinite values of {wrong[0]!r} on the training rows",
            fix="Check the model, and the scale of its inputs.",
        )
    return found


def _quantize_weights(graph: ir.Graph, products: Sequence[ir.Node], fixed: set[ir.Value], names: Names) -> int:
    """Round the weights of products, each once per axis of channels; return how many there are."""
    made: dict[tuple[ir.Value, int | None], ir.Value] = {}
    for node in products:
        op = Builder(graph, f"{node.outputs[0].name}/quantize", before=node, names=names)
        for place, weight in enumerate(node.inputs[:2]):
            if weight is None or weight not in fixed:
                continue
            axis = _channels(node, place, weight)
            if (weight, axis) not in made:
                with op.formulas():
                    made[weight, axis] = _rounded(op, weight, axis)
            node.replace_input_with(place, made[weight, axis])
    return len(made)


def _channels(node: ir.Node, place: int, weight: ir.Value) -> int | None:
    """Return the axis of a weight along which each channel of the result has its own numbers."""
    sizes = query.sizes(weight) or []
    if place == 0 or None in sizes:
        return None
    if node.op_type == "Conv":
        return 0
    return (0 if node.attributes.get_int("transB", 0) else 1) if len(sizes) == 2 else None


def _rounded(op: Builder, weight: ir.Value, axis: int | None) -> ir.Value:
    sizes = query.sizes(weight) or []
    where: dict[str, int] = {} if axis is None else {"axis": axis}
    others = [i for i in range(len(sizes)) if i != axis]
    largest: Any = op.Abs(weight)
    if axis is None:
        largest = op.ReduceMax(largest, keepdims=0)
    elif op.graph.opset_imports.get("", 0) >= 18:
        largest = op.ReduceMax(largest, others, keepdims=0)
    else:
        largest = op.ReduceMax(largest, axes=others, keepdims=0)
    zero = op.const(np.zeros([] if axis is None else [sizes[axis] or 0], np.int8))
    scale = same(op, op.Max(largest, LEAST * 127) / 127)
    return op.DequantizeLinear(op.QuantizeLinear(weight, scale, zero, **where), scale, zero, **where)


def _quantize_activations(
    graph: ir.Graph, roots: Mapping[ir.Value, ir.Value], ranges: Mapping[str, tuple[float, float]], names: Names
) -> list[str]:
    """Round activations, and let all that reads them read that, under their names; return the names of the scales."""
    nodes = list(graph)
    places = {node: place for place, node in enumerate(nodes)}
    pairs: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
    for root in dict.fromkeys(roots.values()):
        low, high = ranges[str(root.name)]
        scale = np.array(max((high - low) / 255, LEAST), np.float32)
        zero = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
        op = Builder(graph, str(root.name), names=names)
        pairs[root] = op.parameter(f"{root.name}_scale", scale), op.parameter(f"{root.name}_zero_point", zero)
    for x, root in roots.items():
        maker, uses = x.producer(), tuple(x.uses())
        after = 0 if maker is None else places[maker] + 1
        op = Builder(graph, f"{x.name}", before=nodes[after] if after < len(nodes) else None, names=names)
        y = op.DequantizeLinear(op.QuantizeLinear(x, *pairs[root]), *pairs[root])
        y.type, y.shape = x.type, x.shape
        for node, place in uses:
            node.replace_input_with(place, y)
        if maker is not None:
            if x.is_graph_output():
                graph.outputs[:] = [y if output is x else output for output in graph.outputs]
            name, x.name = x.name, names.fresh(f"{x.name}/float")
            y.name = name
    return [str(scale.name) for scale, _ in pairs.values()]
