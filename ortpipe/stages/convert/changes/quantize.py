"""Fake quantization: the operands of products are rounded to 8 bits and back, in the graph that is trained.

    x ← DequantizeLinear(QuantizeLinear(x, s, z), s, z)

Activations are uint8 per tensor, s = (max - min) / 255, with the range of the training rows widened to include 0.
Weights are int8 per channel, s = max|w| / 127 and z = 0, of the current weights at each step. onnxruntime's integer
kernels take this form on every processor. Of the operators that its quantizer chooses, these have such kernels and
compute or pass on operands of products.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.data.feeds import feed_inputs
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvertError, NoRowsError
from ortpipe.facts import Facts
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.graph.core.check import finish
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.graph.core.inference import infer
from ortpipe.graph.core.operators import having
from ortpipe.graph.forms.int8 import computed_from_weights
from ortpipe.graph.forms.modes import to_inference
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.dialects.integers import stop_gradient
from ortpipe.stages.convert.forward import Converted

ROWS, PIECE = 512, 64
PRODUCTS = having("product") & having("int8")
MOVES = having("layout") | {"MaxPool"}  # which keep scale and zero point
JOINING = having("int8") - PRODUCTS - MOVES  # between products, of activations only
LEAST = 1e-8  # smallest scale: that of a channel of zeros


def quantized(converted: Converted, form: str, source: Any, data: Data | None) -> Converted:
    """Insert pairs of QuantizeLinear and DequantizeLinear in front of the products of a model, in place.

    Ranges of activations come from evenly spaced training rows. The result has no weights to compare with a source.

    Raises:
        ConvertError: no product has weights, a product is not float32, or an activation is not finite.
    """
    forward, facts = converted.forward, converted.facts
    if data is None:
        rule, fix = "{key} measures ranges on training rows.", "Give data."
        raise NoRowsError(rule, key="quantize", got="no rows", fix=fix)
    if getattr(forward, "rounding", 0) and getattr(source, "quantized", None) == "fake":
        rule, fix = "{key} rounds a model of floats.", "Set {at}source.quantized=float: it is then rounded once."
        raise ConvertError(rule, key="quantize", got="a quantized file, read as it rounds", fix=fix)
    rows = data.train.sample()
    rows = rows.take(np.unique(np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).astype(int)))
    scales, note = _quantize(forward.model, facts, rows)
    facts = dataclasses.replace(facts, constants=(*facts.constants, *scales))
    record = {"quantize": form}
    return converted.next(note, record=record, facts=facts, source_weights={}, finished=None)


def _quantize(model: ir.Model, facts: Facts, rows: Rows) -> tuple[list[str], str]:
    """Quantize a model in place; return the names of the initializers that hold activations' scales, and a note."""
    graph = model.graph
    constant = computed_from_weights(graph)
    products = [n for n in graph if n.op_type in PRODUCTS and not n.domain and not constant.issuperset(n.inputs[:2])]
    if not any(x in constant for node in products for x in node.inputs[:2]):
        rule, fix = "{key} needs at least one product with weights.", "Leave out {key}."
        raise ConvertError(rule, key="quantize", got=f"no {', '.join(sorted(PRODUCTS))} with weights", fix=fix)
    if wrong_type := next((n for n in products if n.outputs[0].dtype != ir.DataType.FLOAT), None):
        raise ConvertError(
            "QuantizeLinear rounds float32.",
            key="quantize",
            got=f"{query.called(wrong_type)} of type {wrong_type.outputs[0].dtype}",
            fix="Set {at}dtype=float32 for an estimator, {at}source.dtype=float32 for a file.",
        )
    roots = _roots(graph, products, constant)
    ranges = _ranges(model, facts, rows, [str(x.name) for x in dict.fromkeys(roots.values())])
    names = Names(used_names(graph))
    weights = _quantize_weights(graph, products, constant, names)
    scales = _quantize_activations(graph, roots, ranges, names)
    infer(model)
    return scales, (
        f"rounds {weights} weights (int8, per channel) and {len(roots)} activations (uint8, ranges of {len(rows)} "
        f"training rows) of {len(products)} products; the run's folder gets model.int8.onnx, whose kernels compute so"
    )


def _roots(graph: ir.Graph, products: list[ir.Node], constant: set[ir.Value]) -> dict[ir.Value, ir.Value]:
    """Return the activations to round, each with the activation whose range it uses."""
    source_of: dict[ir.Value, ir.Value] = {}
    dropped = set[ir.Value]()

    def want(values: Iterable[ir.Value | None]) -> None:
        source_of.update({x: x for x in values if x is not None and x not in constant and x.dtype == ir.DataType.FLOAT})

    chosen = set(products)
    for node in reversed(graph):
        if node.domain:
            continue
        y = node.outputs[0]
        if node in chosen:
            want(node.inputs[:2])
            if node.op_type == "Conv":  # its integer kernel always returns integers; the others' may return floats
                want([_fused_result(_fused_result(y, ("BatchNormalization",)), ("Relu", "Clip"))])
        elif y in source_of and node.op_type in JOINING and constant.isdisjoint(node.inputs):
            want(node.inputs)
        elif y in source_of and node.op_type in (*MOVES, "Dropout") and node.inputs[0] not in constant:
            assert node.inputs[0] is not None
            source_of[y] = node.inputs[0]
            want(node.inputs[:1])
            if node.op_type == "Dropout":  # in training it scales up the entries that it keeps
                dropped.add(y)
    paths = {x: _path_to_root(x, source_of) for x in reversed(source_of)}
    return {x: path[-1] for x, path in paths.items() if dropped.isdisjoint(path)}


def _fused_result(y: ir.Value, kinds: Sequence[str]) -> ir.Value:
    """Return the result of a value's only reader if that is one of these operators; else the value."""
    uses = y.uses()
    if len(uses) != 1 or y.is_graph_output():
        return y
    [(node, place)] = uses
    return node.outputs[0] if node.op_type in kinds and place == 0 else y


def _path_to_root(x: ir.Value, source_of: Mapping[ir.Value, ir.Value]) -> list[ir.Value]:
    """Return a value and its sources, up to the one whose range it uses."""
    return [x] if source_of[x] is x else [x, *_path_to_root(source_of[x], source_of)]


def _ranges(model: ir.Model, facts: Facts, rows: Rows, names: list[str]) -> dict[str, tuple[float, float]]:
    """Return the minimum and maximum of each value on these rows, widened to include 0."""
    inner_names = [name for name in names if name not in facts.inputs]
    inference = model.clone()
    to_inference(inference)
    inputs = feed_inputs(finish(inference), facts, rows)
    keep_outputs(inference, inner_names)
    needed = {str(x.name) for x in query.data_inputs(inference.graph)}
    session = Session(ir.to_proto(inference)) if inner_names else None
    ranges = dict.fromkeys(names, (0.0, 0.0))
    for start in range(0, len(rows), PIECE):
        piece = {name: array[start : start + PIECE] for name, array in inputs.items()}
        arrays = [] if session is None else session.run({k: v for k, v in piece.items() if k in needed}, inner_names)
        for name, array in {**piece, **dict(zip(inner_names, arrays, strict=True))}.items():
            if name in ranges:
                ranges[name] = min(ranges[name][0], float(array.min())), max(ranges[name][1], float(array.max()))
    if not_finite := [name for name, pair in ranges.items() if not np.isfinite(pair).all()]:
        raise ConvertError(
            "Quantized values must have a finite range.",
            key="quantize",
            got=f"nan or infinite values of {not_finite[0]!r} on the training rows",
            fix="Check the model, and the scale of its inputs.",
        )
    return ranges


def _quantize_weights(graph: ir.Graph, products: Sequence[ir.Node], constant: set[ir.Value], names: Names) -> int:
    """Round the weights of products, each once per channel axis; return their number."""
    rounded: dict[tuple[ir.Value, int | None], ir.Value] = {}
    for node in products:
        op = Builder(graph, f"{node.outputs[0].name}/quantize", before=node, names=names)
        for place, weight in enumerate(node.inputs[:2]):
            if weight is None or weight not in constant:
                continue
            axis = _channels(node, place, weight)
            if (weight, axis) not in rounded:
                with op.formulas():
                    rounded[weight, axis] = _round_weight(op, weight, axis)
            node.replace_input_with(place, rounded[weight, axis])
    return len(rounded)


def _channels(node: ir.Node, place: int, weight: ir.Value) -> int | None:
    """Return the axis of a weight that belongs to the channels of the product; None: round it as a whole."""
    sizes = query.sizes(weight) or []
    if place == 0 or None in sizes:
        return None
    if node.op_type == "Conv":
        return 0
    return (0 if node.attributes.get_int("transB", 0) else 1) if len(sizes) == 2 else None


def _round_weight(op: Builder, weight: ir.Value, axis: int | None) -> ir.Value:
    sizes = query.sizes(weight) or []
    per_axis: dict[str, int] = {} if axis is None else {"axis": axis}
    largest = op.ReduceMax(op.Abs(weight), [i for i in range(len(sizes)) if i != axis], keepdims=0)
    zero = op.const(np.zeros([] if axis is None else [sizes[axis] or 0], np.int8))
    scale = stop_gradient(op, op.Max(largest, LEAST * 127) / 127)
    return op.DequantizeLinear(op.QuantizeLinear(weight, scale, zero, **per_axis), scale, zero, **per_axis)


def _quantize_activations(
    graph: ir.Graph, roots: Mapping[ir.Value, ir.Value], ranges: Mapping[str, tuple[float, float]], names: Names
) -> list[str]:
    """Round activations for all of their readers, under their names; return the names of the scales."""
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
        producer, uses = x.producer(), tuple(x.uses())
        position = 0 if producer is None else places[producer] + 1
        op = Builder(graph, f"{x.name}", before=nodes[position] if position < len(nodes) else None, names=names)
        y = op.DequantizeLinear(op.QuantizeLinear(x, *pairs[root]), *pairs[root])
        y.type, y.shape = x.type, x.shape
        for node, place in uses:
            node.replace_input_with(place, y)
        if producer is not None:
            if x.is_graph_output():
                graph.outputs[:] = [y if output is x else output for output in graph.outputs]
            name, x.name = x.name, names.fresh(f"{x.name}/float")
            y.name = name
    return [str(scale.name) for scale, _ in pairs.values()]
