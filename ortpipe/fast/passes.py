"""Passes over a finished epoch graph: each keeps the function and makes its nodes fewer or faster."""

import numpy as np
import onnx_ir as ir

from ortpipe.fast.hoist import replace_output
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.graph.core.rewrite import rewrite
from ortpipe.stages.train.epoch_graph import EpochGraph

GEMM_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def start_at_rate(epoch: EpochGraph) -> None:
    """Start the backward pass at −η if every gradient is first multiplied by it, since the backward pass is linear."""
    body = epoch.body
    by_name = query.values(body)
    gradients = dict.fromkeys(by_name[name] for name in epoch.gradients)
    scaling = [use.node for gradient in gradients for use in gradient.uses()]
    rates = {x for node in scaling for x in node.inputs if x is not None and x not in gradients}
    seed = body.initializers.get(epoch.seed or "")
    if seed is None or len(rates) != 1 or any(node.op_type != "Mul" for node in scaling):
        return
    [rate] = rates
    alike = (rate.shape, rate.dtype) == (seed.shape, seed.dtype)
    if rate not in body.inputs or not alike or query.array(seed) != 1:
        return
    body.initializers.pop(str(seed.name))
    ir.convenience.replace_all_uses_with(seed, rate)
    for node in scaling:
        [gradient] = [x for x in node.inputs if x is not None and x is not rate]
        ir.convenience.replace_all_uses_with(node.outputs[0], gradient)
    body.remove(scaling, safe=True)


def join_products(epoch: EpochGraph) -> None:
    """Merge x + A·B, c·x + A·B and A·B + b with a bias b [K] into one Gemm, which adds while it multiplies.

    With the bias inside, `carry_biases_as_rows` can carry it as a row.
    """
    joined = list[ir.Node]()

    def gemm(op: Builder, node: ir.Node) -> list[ir.Value] | None:
        for x, product in (node.inputs, node.inputs[::-1]):
            maker = query.maker_for_one(product)
            if x is None or product is None or maker is None or maker.op_type not in ("Gemm", "MatMul"):
                continue
            attributes = {name: attribute.value for name, attribute in maker.attributes.items()}
            if maker.op_type == "Gemm" and (any(maker.inputs[2:]) or product.shape != x.shape):
                continue
            if maker.op_type == "MatMul" and not _is_layer(maker, x):
                continue
            x, beta = _unscaled(x) if maker.op_type == "Gemm" else (x, 1.0)
            joined.append(maker)
            return [op.Gemm(*maker.inputs[:2], x, **{**attributes, "beta": beta})]  # the training build writes beta 0
        return None

    rewrite(epoch.body, {"Add": gemm})
    epoch.body.remove(joined, safe=True)


def _is_layer(product: ir.Node, bias: ir.Value) -> bool:
    """Return whether a product of matrices [N, C] · [C, K] and a bias [K] have the types and sizes of a Gemm."""
    sizes = [query.sizes(x) or [] for x in (*product.inputs, bias)]
    ranks = [*map(len, sizes)] == [2, 2, 1] and product.outputs[0].dtype in GEMM_TYPES
    return ranks and sizes[1][1] == sizes[2][0] is not None


def _unscaled(x: ir.Value) -> tuple[ir.Value, float]:
    """Return y and c if x = y·c has no other use and c is a float32 number, else x and 1."""
    node = x.producer()
    if node is None or node.op_type != "Mul" or len(x.uses()) != 1 or x.is_graph_output():
        return x, 1.0
    y, factor = node.inputs[0], query.constant(node.inputs[1])
    if y is None or y.shape != x.shape or factor is None or factor.shape or np.float32(factor) != factor:
        return x, 1.0
    return y, float(factor)


def carry_biases_as_rows(epoch: EpochGraph) -> None:
    """Write b ← b + 1ᵀ·G, with a bias [K] and gradients G [N, K], as one Gemm on b as [1, K], like updates of weights.

    The inputs and outputs of the epoch keep their shapes: biases are reshaped before and after the Scan.
    """
    scan, body, graph = epoch.scan, epoch.body, epoch.model.graph
    names = Names(used_names(graph))
    front, back = (Builder(graph, "bias", before=place, names=names) for place in (scan, None))
    axis = np.zeros(1, np.int64)
    for place, (bias, moved) in enumerate(zip(list(body.inputs), list(body.outputs), strict=False)):
        rows = _summed_rows(bias, moved)
        if rows is None or rows.shape is None or rows.dtype is None:
            continue
        inside = Builder(body, "bias", before=moved.producer(), names=names)
        row = inside.Gemm(inside.const(np.ones((1, rows.shape[0]), rows.dtype.numpy())), rows, bias)
        row.type, row.shape = moved.type, ir.Shape([1, rows.shape[1]])
        bias.shape, body.outputs[place] = row.shape, row
        scan.replace_input_with(place, front.Unsqueeze(scan.inputs[place], front.const(axis)))
        ended = scan.outputs[place]
        replace_output(graph, place, back.Squeeze(ended, back.const(axis)))
        ended.shape = row.shape


def _summed_rows(bias: ir.Value, moved: ir.Value) -> ir.Value | None:
    """Return the G of moved = bias + 1ᵀ·G if every use of the bias also accepts a row."""
    node = moved.producer()
    if node is None or node.op_type != "Add" or bias not in node.inputs or bias.shape is None or bias.shape.rank() != 1:
        return None
    [total] = [x for x in node.inputs if x is not bias] or [None]
    summing = total.producer() if total is not None else None
    if total is None or summing is None or len(total.uses()) != 1:
        return None
    if summing.op_type == "MatMul" and _is_ones(summing.inputs[0]):
        rows = summing.inputs[1]
    elif summing.op_type == "ReduceSum" and _first_axis_only(summing):
        rows = summing.inputs[0]
    else:
        return None
    as_row = all(use.node is node or (use.node.op_type == "Gemm" and use.idx == 2) for use in bias.uses())
    static = rows is not None and rows.shape is not None and rows.shape.rank() == 2 and rows.shape.is_static()
    return rows if as_row and static else None


def _is_ones(value: ir.Value | None) -> bool:
    node, ones = value.producer() if value is not None else None, query.constant(value)
    if node is not None and node.op_type == "ConstantOfShape" and "value" in node.attributes:
        ones = node.attributes["value"].as_tensor().numpy()
    vector = value is not None and value.shape is not None and value.shape.rank() == 1
    return vector and ones is not None and bool((ones == 1).all())


def _first_axis_only(node: ir.Node) -> bool:
    return query.axes(node, None) == [0] and not node.attributes.get_int("keepdims", 1)


def share_exponentials(epoch: EpochGraph) -> None:
    """Replace exp(LogSoftmax(x)) by Softmax(x): a compiler computes the exponentials and sums of both once."""

    def softmax(op: Builder, node: ir.Node) -> list[ir.Value] | None:
        maker = node.inputs[0].producer() if node.inputs[0] is not None else None
        if maker is None or maker.op_type != "LogSoftmax":
            return None
        return [op.Softmax(maker.inputs[0], axis=maker.attributes.get_int("axis", -1))]

    rewrite(epoch.body, {"Exp": softmax})
