"""Convert a fake-quantized model to an integer one: int8 weights, and int32 biases in units of both scales."""

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.check import finish
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.graph.core.inference import parsed
from ortpipe.graph.core.operators import having, is_random
from ortpipe.graph.forms.modes import to_inference

Arrays = dict[ir.Value | None, np.ndarray]

LAYOUT = having("layout")
# the range of operands that are weights, scales and biases; only the integer form below asks for it
READ = {"Add": (0, 2), "BatchNormalization": (1, 5), "Conv": (2, 3), "Gemm": (2, 3), "QuantizeLinear": (0, 2)}
LARGEST_BIAS = 2.0**31 * 0.9  # bias in int32, less a margin for rounding


def computed_from_weights(graph: ir.Graph) -> set[ir.Value]:
    """Return a graph's initializers, and the values computed from them and constants only."""
    fixed = {value for value in graph.initializers.values() if not value.is_graph_input()}
    for node in graph:
        read = (*node.inputs, *query.captured(node))
        if not is_random(node) and all(x is None or x in fixed for x in read):
            fixed.update(node.outputs)
    return fixed


def to_int8(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with its rounded weights as integers, as onnxruntime's integer kernels need them.

    QuantizeLinear(W, s) becomes an int8 array. The bias b of a Conv or Gemm whose operands have scales sx
    and s becomes round(b / (sx · s)) in int32; where that is too large, s grows (as onnxruntime's quantizer does). A
    BatchNormalization after a Conv or Gemm is folded into scales and bias; a MatMul and an added bias become a Gemm.
    Predictions change only by the rounding of biases.
    """
    graph_model = parsed(model)
    to_inference(graph_model)
    graph = graph_model.graph
    fixed = computed_from_weights(graph)
    arrays = _evaluated(graph_model, fixed)
    op = Builder(graph, "int8", before=graph[0])
    for node in list(graph):
        # it would separate nodes that kernels fuse
        if node.op_type == "Dropout" and not node.outputs[0].is_graph_output():
            assert node.inputs[0] is not None
            ir.convenience.replace_all_uses_with(node.outputs[0], node.inputs[0])
    for node in list(graph):
        if node.op_type in LAYOUT and (quantize := _quantizer(node.inputs[0])) is not None:
            _requantize(op, node, quantize)
    for node in list(graph):
        if node.op_type == "MatMul":
            _as_gemm(node, arrays)
        if node.op_type in ("Conv", "Gemm"):
            _integer_bias(op, node, arrays)
    for node in list(graph):
        if node.op_type == "QuantizeLinear" and node.inputs[0] in fixed:
            _as_array(op, node, arrays)
    graph.sort()
    graph_model.producer_name = "ortpipe"
    return finish(graph_model)


def _evaluated(model: ir.Model, fixed: set[ir.Value]) -> Arrays:
    """Return the arrays of weights, scales and biases, computed ones included."""
    from onnx.reference import ReferenceEvaluator

    name_by_value = dict[ir.Value | None, str]()
    for node in model.graph:
        read = node.inputs[slice(*READ.get(node.op_type, (0, 0)))]
        name_by_value |= {x: str(x.name) for x in read if x is not None and x in fixed}
    names = list(name_by_value.values())
    part = model.clone()
    keep_outputs(part, names)
    results = ReferenceEvaluator(ir.to_proto(part)).run(None, {}) if names else []
    return dict(zip(name_by_value, results, strict=True))


def _quantizer(x: ir.Value | None) -> ir.Node | None:
    """Return the QuantizeLinear before the DequantizeLinear that yields a value, or None."""
    dequantize = x.producer() if x is not None else None
    if dequantize is None or dequantize.op_type != "DequantizeLinear" or dequantize.inputs[0] is None:
        return None
    quantize = dequantize.inputs[0].producer()
    return quantize if quantize is not None and quantize.op_type == "QuantizeLinear" else None


def _requantize(op: Builder, node: ir.Node, quantize: ir.Node) -> None:
    """Round the output of a node that only moves rounded numbers, which training did not where a Dropout came first."""
    y, (_, scale, zero) = node.outputs[0], quantize.inputs
    readers = [(use.node, use.idx) for use in y.uses() if use.node.op_type != "QuantizeLinear"]
    if not readers:
        return
    rounded = op.DequantizeLinear(op.QuantizeLinear(y, scale, zero), scale, zero)
    rounded.type, rounded.shape = y.type, y.shape
    for reader, place in readers:
        reader.replace_input_with(place, rounded)


def _integer_bias(op: Builder, node: ir.Node, arrays: Arrays) -> None:
    """Write the bias of an integer product as integers, with a BatchNormalization after it folded in."""
    x, w, [*_, bias] = _quantizer(node.inputs[0]), _quantizer(node.inputs[1]), (*node.inputs, None)[:3]
    channels = (query.sizes(node.outputs[0]) or [None, None])[1]
    plain = all(node.attributes.get_float(name, 1.0) == 1 for name in ("alpha", "beta"))
    if x is None or w is None or not plain or channels is None or w.inputs[0] not in arrays:
        return
    array = np.zeros(1) if bias is None else arrays.get(bias, np.zeros(0)).astype(np.float64).ravel()
    sx, sw = (arrays[n.inputs[1]].astype(np.float64) for n in (x, w))
    if sx.ndim or array.size not in (1, channels):
        return
    array = np.broadcast_to(array, channels)
    norm = _normalization(node, w, arrays)
    if norm is not None:
        gamma, beta, mean, variance = (arrays[v].astype(np.float64) for v in norm.inputs[1:5])
        factor = gamma / np.sqrt(variance + norm.attributes.get_float("epsilon", 1e-5))
        array, axis = (array - mean) * factor + beta, w.attributes.get_int("axis", 1)
        weight = arrays[w.inputs[0]]
        arrays[w.inputs[0]] = weight * factor.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
        sw = np.maximum(sw * np.abs(factor), np.finfo(np.float32).tiny)
        _take_over(node, norm)
    elif bias is None:
        return
    least = np.abs(array) / (sx * LARGEST_BIAS)
    arrays[w.inputs[1]] = sw = np.maximum(sw, least if sw.ndim else least.max()).astype(np.float32)
    unit = np.broadcast_to(sx.astype(np.float32) * sw, channels)
    integers = np.rint(array / unit).astype(np.int32)
    name = f"{node.outputs[0].name}/bias" if bias is None else str(bias.name)
    values = {"quantized": integers, "scale": np.array(unit), "zero_point": np.zeros(channels, np.int32)}
    y = op.DequantizeLinear(*(op.parameter(f"{name}_{kind}", a) for kind, a in values.items()), axis=0)
    node.resize_inputs(3)
    node.replace_input_with(2, y)


def _take_over(node: ir.Node, last: ir.Node) -> None:
    """Replace a later node's output by a node's, under the later one's name."""
    y, name = node.outputs[0], last.outputs[0].name
    ir.convenience.replace_all_uses_with(last.outputs[0], y, replace_graph_outputs=True)
    last.outputs[0].name, y.name = None, name


def _as_gemm(node: ir.Node, arrays: Arrays) -> None:
    """Fuse a MatMul and its bias to a Gemm: onnxruntime would do so itself, but in floats."""
    uses = [*node.outputs[0].uses()]
    ranks = {len(query.sizes(x) or ()) for x in (*node.inputs, node.outputs[0])}
    if len(uses) != 1 or node.outputs[0].is_graph_output() or ranks != {2} or None in map(_quantizer, node.inputs):
        return
    [(add, place)] = uses
    bias = add.inputs[1 - place] if add.op_type == "Add" else None
    sizes = query.sizes(node.outputs[0]) or []
    if bias in arrays and arrays[bias].shape in ((), (1,), (sizes[1],), (1, sizes[1])):
        node.op_type = "Gemm"
        node.resize_inputs(3)
        node.replace_input_with(2, bias)
        _take_over(node, add)


def _normalization(node: ir.Node, weight: ir.Node, arrays: Arrays) -> ir.Node | None:
    """Return the BatchNormalization that is a product's only reader, if it can be folded into its weights' scales."""
    readers = [use.node for use in node.outputs[0].uses()]
    norm = readers[0] if len(readers) == 1 and not node.outputs[0].is_graph_output() else None
    if norm is None or norm.op_type != "BatchNormalization" or not arrays[weight.inputs[1]].ndim:
        return None
    exclusive = [len(use.node.outputs[0].uses()) for use in weight.outputs[0].uses()] == [1]
    return norm if exclusive and all(v in arrays for v in norm.inputs[1:5]) else None


def _as_array(op: Builder, node: ir.Node, arrays: Arrays) -> None:
    """Replace a weight's QuantizeLinear by its integers, scale and zero point."""
    weight, scale, zero = node.inputs
    assert weight is not None and scale is not None and zero is not None
    array, s, axis = arrays[weight].astype(np.float32), arrays[scale], node.attributes.get_int("axis", 1)
    wide = s.reshape([-1 if i == axis else 1 for i in range(array.ndim)]) if s.ndim else s
    q = np.clip(np.rint(array / wide), -128, 127).astype(np.int8)
    parts = {"quantized": q, "scale": s, "zero_point": np.zeros(s.shape, np.int8)}
    new = [op.parameter(f"{weight.name}_{kind}", part) for kind, part in parts.items()]
    for reader in [use.node for use in node.outputs[0].uses()]:
        for place, value in enumerate(new):
            reader.replace_input_with(place, value)
