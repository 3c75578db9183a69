"""Biases carried as one row: the product that is their gradient then accumulates onto them, as it does for weights."""

import numpy as np
import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.builder import Builder, Names, used_names
from ortpipe.stages.train.epoch import EpochGraph


def carry_biases_as_rows(epoch: EpochGraph) -> None:
    """Let b ← b + 1ᵀ·G, of a bias [K] and gradients G [N, K], be one Gemm on b as [1, K].

    Inputs and outputs of the epoch stay as they are: biases are reshaped in front of the Scan and behind it.
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
        made = inside.Gemm(inside.const(np.ones((1, rows.shape[0]), rows.dtype.numpy())), rows, bias)
        made.type, made.shape = moved.type, ir.Shape([1, rows.shape[1]])
        bias.shape, body.outputs[place] = made.shape, made
        scan.replace_input_with(place, front.Unsqueeze(scan.inputs[place], front.const(axis)))
        ended = scan.outputs[place]
        flat = back.Squeeze(ended, back.const(axis))
        flat.type, flat.shape, ended.shape = ended.type, ended.shape, made.shape
        name, graph.outputs[place] = ended.name, flat
        ended.name, flat.name = flat.name, name


def _summed_rows(bias: ir.Value, moved: ir.Value) -> ir.Value | None:
    """Return the G of moved = bias + 1ᵀ·G, where nothing minds that the bias is a row."""
    node = moved.producer()
    if node is None or node.op_type != "Add" or bias not in node.inputs or bias.shape is None or bias.shape.rank() != 1:
        return None
    [total] = [x for x in node.inputs if x is not bias] or [None]
    summing = total.producer() if total is not None else None
    if total is None or summing is None or len(total.uses()) != 1:
        return None
    if summing.op_type == "MatMul" and _is_ones(summing.inputs[0]):
        rows = summing.inputs[1]
    elif summing.op_type == "ReduceSum" and summing.inputs[1:] and _first_axis_only(summing):
        rows = summing.inputs[0]
    else:
        return None
    as_row = all(use.node is node or (use.node.op_type == "Gemm" and use.idx == 2) for use in bias.uses())
    static = rows is not None and rows.shape is not None and rows.shape.rank() == 2 and rows.shape.is_static()
    return rows if as_row and static else None


def _is_ones(value: ir.Value | None) -> bool:
    node = value.producer() if value is not None else None
    if value is None or value.shape is None or value.shape.rank() != 1 or node is None:
        return False
    if node.op_type == "ConstantOfShape":
        return bool((node.attributes["value"].as_tensor().numpy() == 1).all()) if "value" in node.attributes else False
    constant = query.constant(value)
    return constant is not None and bool((constant == 1).all())


def _first_axis_only(node: ir.Node) -> bool:
    axes = query.constant(node.inputs[1])
    keeps = "keepdims" not in node.attributes or node.attributes["keepdims"].as_int() == 1
    return axes is not None and axes.tolist() == [0] and not keeps
