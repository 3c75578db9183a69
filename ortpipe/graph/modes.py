"""The two modes of a graph: training (batches normalize themselves, dropout draws) and inference."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ortpipe.errors import ModelError
from ortpipe.graph.builder import Names, used_names
from ortpipe.graph.check import finish
from ortpipe.graph.query import all_nodes

DRAWING = {  # operators that draw at random, and the type of their attribute `seed`
    "Bernoulli": float,
    "Dropout": int,
    "Multinomial": float,
    "RandomNormal": float,
    "RandomNormalLike": float,
    "RandomUniform": float,
    "RandomUniformLike": float,
}


def statistics(graph: ir.Graph) -> dict[str, ir.Value]:
    """Return each running statistic (an initializer) and its next value, of every BatchNormalization that trains.

    Running mean and variance move by the batch's own, m · old + (1 − m) · batch, with ONNX's momentum m and the
    variance of N (PyTorch's running variance divides by N − 1). A layer that runs twice moves them twice.
    """
    names, found = Names(used_names(graph)), dict[str, ir.Value]()
    last: dict[ir.Value, ir.Value] = {}
    for node in graph:
        if not _normalizes_itself(node):
            continue
        for i, y in zip((3, 4), node.outputs[1:], strict=True):  # in training mode ONNX wants all three outputs
            old = node.inputs[i]
            assert old is not None
            if not old.is_initializer():
                continue
            if not is_statistic(old):
                raise ModelError(
                    "What a training BatchNormalization moves is read as nothing else.",
                    got=f"{old.name!r}, a running statistic, is read elsewhere too",
                    fix="Set convert.untie=true: each place gets its own copy.",
                )
            y.name = y.name or names.fresh(f"{old.name}/next")
            y.type, y.shape = old.type, old.shape
            if old in last:
                node.replace_input_with(i, last[old])
            last[old] = found[str(old.name)] = y
    return found


def is_statistic(value: ir.Value) -> bool:
    """Say whether a value is the running mean or variance of a BatchNormalization and nothing else."""
    uses = value.uses()
    return bool(uses) and all(use.node.op_type == "BatchNormalization" and use.idx in (3, 4) for use in uses)


def for_inference(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model as it predicts: normalized by the running statistics, nothing dropped.

    >>> text = '''<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,2] y) {
    ...     on = Constant<value = bool {1}>() half = Constant<value_float=0.5>() y = Dropout(X, half, on) }'''
    >>> [len(n.input) for n in for_inference(onnx.parser.parse_model(text)).graph.node]
    [1]
    """
    if not any(_trains(node) for node in all_nodes(model.graph)):
        return model
    own = ir.from_proto(model)
    for node in own.graph.all_nodes():
        if not (_normalizes_itself(node) or (node.op_type == "Dropout" and node.inputs[2:])):
            continue
        if node.op_type == "Dropout":
            node.resize_inputs(1)
            continue
        del node.attributes["training_mode"]
        for x, y in zip(node.inputs[3:], node.outputs[1:], strict=False):
            assert x is not None
            ir.convenience.replace_all_uses_with(y, x)
        node.resize_outputs(1)
    return finish(own)


def with_seeds(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return the model with a seed of its own, counted from `seed`, for every node that draws."""
    own = onnx.ModelProto()
    own.CopyFrom(model)
    for number, node in enumerate(_drawing(own.graph)):
        kept = [a for a in node.attribute if a.name != "seed"]
        del node.attribute[:]
        value = DRAWING[node.op_type](seed + number)
        node.attribute.extend([*kept, onnx.helper.make_attribute("seed", value)])
    return own


def draws(model: onnx.ModelProto) -> bool:
    """Say whether a model's values differ from run to run."""
    return bool(_drawing(model.graph))


def _drawing(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    return [n for n in all_nodes(graph) if n.op_type in DRAWING and (n.op_type != "Dropout" or _trains(n))]


def _trains(node: onnx.NodeProto) -> bool:
    if node.op_type == "Dropout":
        return len(node.input) > 2
    return node.op_type == "BatchNormalization" and any(a.name == "training_mode" and a.i for a in node.attribute)


def _normalizes_itself(node: ir.Node) -> bool:
    mode = node.attributes.get("training_mode")
    return node.op_type == "BatchNormalization" and mode is not None and bool(mode.as_int())
