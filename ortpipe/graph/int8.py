"""A fake-quantized model as one of integers: its weights are int8, its biases int32 in units of both scales."""

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.graph.check import finish, parsed
from ortpipe.graph.edit import keep_outputs
from ortpipe.graph.modes import to_inference
from ortpipe.graph.operators import is_random

Arrays = dict[ir.Value | None, np.ndarray]

MOVES = ("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
BIASED = ("Conv", "Gemm")
READ = {
    "Add": (0, 2),
    "BatchNormalization": (1, 5),
    "Conv": (2, 3),
    "Gemm": (2, 3),
    "QuantizeLinear": (0, 2),
}  # operands with values
LARGEST = 2.0**31 * 0.9  # of a bias: int32, less what rounding may add


def computed_from_weights(graph: ir.Graph) -> set[ir.Value]:
    """Return a graph's initializers, and what is computed from them and constants alone."""
    fixed = {value for value in graph.initializers.values() if not value.is_graph_input()}
    for node in graph:
        read = (*node.inputs, *query.captured(node))
        if not is_random(node) and all(x is None or x in fixed for x in read):
            fixed.update(node.outputs)
    return fixed


def is_quantized(model: onnx.ModelProto) -> bool:
    """Say whether a model rounds to integers what it computes with."""
    return any(node.op_type == "QuantizeLinear" and not node.domain for node in model.graph.node)


def to_int8(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose weights are integers where it rounds them, as onnxruntime's kernels of integers need them.

    W → QuantizeLinear(W, s) becomes the int8 array itself. The bias b of a Conv or Gemm whose operands have scales sx
    and s becomes round(b / (sx · s)) in int32; where that is too large, s grows (as onnxruntime's quantizer does). A
    BatchNormalization behind a Conv or Gemm becomes its scales and bias, a sum of a matrix product and a bias a Gemm.
    Predictions stay, but for the rounding of biases.
    """
    own = parsed(model)
    to_inference(own)
    graph = own.graph
    fixed = computed_from_weights(graph)
    held = _evaluated(own, fixed)
    op = Builder(graph, "int8", before=graph[0])
    for node in list(graph):
        if node.op_type == "Dropout" and not node.outputs[0].is_graph_output():  # it parts what kernels take together
            assert node.inputs[0] is not None
            ir.convenience.replace_all_uses_with(node.outputs[0], node.inputs[0])
    for node in list(graph):
        if node.op_type in MOVES and (maker := _pair(node.inputs[0])) is not None:
            _requantize(op, node, maker)
    for node in list(graph):
        if node.op_type == "MatMul":
            _as_gemm(node, held)
        if node.op_type in BIASED:
            _integer_bias(op, node, held)
    for node in list(graph):
        if node.op_type == "QuantizeLinear" and node.inputs[0] in fixed:
            _as_array(op, node, held)
    graph.sort()
    own.producer_name = "ortpipe"
    return finish(own)


def _evaluated(model: ir.Model, fixed: set[ir.Value]) -> Arrays:
    """Return weights, scales and biases, those that are computed too."""
    from onnx.reference import ReferenceEvaluator

    wanted = dict[ir.Value | None, str]()
    for node in model.graph:
        read = node.inputs[slice(*READ.get(node.op_type, (0, 0)))]
        wanted |= {x: str(x.name) for x in read if x is not None and x in fixed}
    names = list(wanted.values())
    part = model.clone()
    keep_outputs(part, names)
    found = ReferenceEvaluator(ir.to_proto(part)).run(None, {}) if names else []
    return dict(zip(wanted, found, strict=True))


def _pair(x: ir.Value | None) -> ir.Node | None:
    """Return the QuantizeLinear that a value is dequantized from."""
    back = x.producer() if x is not None else None
    if back is None or back.op_type != "DequantizeLinear" or back.inputs[0] is None:
        return None
    maker = back.inputs[0].producer()
    return maker if maker is not None and maker.op_type == "QuantizeLinear" else None


def _requantize(op: Builder, node: ir.Node, maker: ir.Node) -> None:
    """Round what only moves rounded numbers, where a Dropout in front of it kept that out of training."""
    y, (_, scale, zero) = node.outputs[0], maker.inputs
    readers = [(use.node, use.idx) for use in y.uses() if use.node.op_type != "QuantizeLinear"]
    if not readers:
        return
    again = op.DequantizeLinear(op.QuantizeLinear(y, scale, zero), scale, zero)
    again.type, again.shape = y.type, y.shape
    for reader, place in readers:
        reader.replace_input_with(place, again)


def _integer_bias(op: Builder, node: ir.Node, held: Arrays) -> None:
    """Write the bias of a product of integers as integers, with the BatchNormalization behind it."""
    x, w, [*_, bias] = _pair(node.inputs[0]), _pair(node.inputs[1]), (*node.inputs, None)[:3]
    channels = (query.sizes(node.outputs[0]) or [None, None])[1]
    plain = all(node.attributes.get_float(name, 1.0) == 1 for name in ("alpha", "beta"))
    if x is None or w is None or not plain or channels is None or w.inputs[0] not in held:
        return
    array = np.zeros(1) if bias is None else held.get(bias, np.zeros(0)).astype(np.float64).ravel()
    sx, sw = (held[n.inputs[1]].astype(np.float64) for n in (x, w))
    if sx.ndim or array.size not in (1, channels):
        return
    array = np.broadcast_to(array, channels)
    norm = _normalization(node, w, held)
    if norm is not None:
        gamma, beta, mean, variance = (held[v].astype(np.float64) for v in norm.inputs[1:5])
        factor = gamma / np.sqrt(variance + norm.attributes.get_float("epsilon", 1e-5))
        array, axis = (array - mean) * factor + beta, w.attributes.get_int("axis", 1)
        weight = held[w.inputs[0]]
        held[w.inputs[0]] = weight * factor.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])
        sw = np.maximum(sw * np.abs(factor), np.finfo(np.float32).tiny)
        _take_over(node, norm)
    elif bias is None:
        return
    least = np.abs(array) / (sx * LARGEST)
    held[w.inputs[1]] = sw = np.maximum(sw, least if sw.ndim else least.max()).astype(np.float32)
    unit = np.broadcast_to(sx.astype(np.float32) * sw, channels)
    integers = np.rint(array / unit).astype(np.int32)
    name = f"{node.outputs[0].name}/bias" if bias is None else str(bias.name)
    values = {"quantized": integers, "scale": np.array(unit), "zero_point": np.zeros(channels, np.int32)}
    y = op.DequantizeLinear(*(op.parameter(f"{name}_{kind}", a) for kind, a in values.items()), axis=0)
    node.resize_inputs(3)
    node.replace_input_with(2, y)


def _take_over(node: ir.Node, last: ir.Node) -> None:
    """Let a node's output stand for that of a later one, under its name."""
    y, name = node.outputs[0], last.outputs[0].name
    ir.convenience.replace_all_uses_with(last.outputs[0], y, replace_graph_outputs=True)
    last.outputs[0].name, y.name = None, name


def _as_gemm(node: ir.Node, held: Arrays) -> None:
    """Write a product of matrices and the bias that is added to it as a Gemm: onnxruntime does, and then in floats."""
    uses = [*node.outputs[0].uses()]
    ranks = {len(query.sizes(x) or ()) for x in (*node.inputs, node.outputs[0])}
    if len(uses) != 1 or node.outputs[0].is_graph_output() or ranks != {2} or None in map(_pair, node.inputs):
        return
    [(add, place)] = uses
    bias = add.inputs[1 - place] if add.op_type == "Add" else None
    sizes = query.sizes(node.outputs[0]) or []
    if bias in held and held[bias].shape in ((), (1,), (sizes[1],), (1, sizes[1])):
        node.op_type = "Gemm"
        node.resize_inputs(3)
        node.replace_input_with(2, bias)
        _take_over(node, add)


def _normalization(node: ir.Node, weight: ir.Node, held: Arrays) -> ir.Node | None:
    """Return the BatchNormalization that alone reads a product: it scales each channel, and so its weights' scale."""
    readers = [use.node for use in node.outputs[0].uses()]
    norm = readers[0] if len(readers) == 1 and not node.outputs[0].is_graph_output() else None
    own = len(weight.outputs[0].uses()) == 1 and all(
        len(use.node.outputs[0].uses()) == 1 for use in weight.outputs[0].uses()
    )
    if norm is None or norm.op_type != "BatchNormalization" or not own or not held[weight.inputs[1]].ndim:
        return None
    return norm if all(v in held for v in norm.inputs[1:5]) else None


def _as_array(op: Builder, node: ir.Node, held: Arrays) -> None:
    """Put the integers of a weight, and its scale, in the place of what computes them."""
    weight, scale, zero = node.inputs
    assert weight is not None and scale is not None and zero is not None
    array, s, axis = (
        held[weight].astype(np.float32),
        held[scale],
        node.attributes.get_int("axis", 1),
    )
    wide = s.reshape([-1 if i == axis else 1 for i in range(array.ndim)]) if s.ndim else s
    q = np.clip(np.rint(array / wide), -128, 127).astype(np.int8)
    name = str(weight.name)
    back = [use.node for use in node.outputs[0].uses()]
    new = op.parameter(f"{name}_quantized", q)
    new_scale = op.parameter(f"{name}_scale", s)
    new_zero = op.parameter(f"{name}_zero_point", np.zeros(s.shape, np.int8))
    for reader in back:
        for place, value in enumerate((new, new_scale, new_zero)):
            reader.replace_input_with(place, value)
