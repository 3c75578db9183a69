"""The logarithm of a Sigmoid without overflow."""

from collections.abc import Sequence
from typing import Any

from onnx_ir import Node, Value

from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.rewrite import Rewrite


def log(op: Builder, node: Node) -> Sequence[Value] | None:
    """Return log σ(x), or log(1 − σ(x)) = log σ(−x), as (x − |x|)/2 − log(1 + exp(−|x|))."""
    probability = node.inputs[0]
    if (x := _input_of(probability, "Sigmoid")) is not None:
        return [_log_sigmoid(op, x)]
    maker = probability.producer() if probability is not None else None
    if maker is None or maker.op_type != "Sub" or maker.domain or not _is_one(maker.inputs[0]):
        return None
    x = _input_of(maker.inputs[1], "Sigmoid")
    return None if x is None else [_log_sigmoid(op, op.Neg(x))]


def _log_sigmoid(op: Builder, x: Any) -> Value:
    size = op.Abs(x)  # not −softplus(−x): onnxruntime's Softplus of float64 overflows
    return (x - size) * 0.5 - op.Log(op.Exp(op.Neg(size)) + 1)


def _input_of(value: Value | None, op_type: str) -> Value | None:
    node = value.producer() if value is not None else None
    return node.inputs[0] if node is not None and node.op_type == op_type and not node.domain else None


def _is_one(value: Value | None) -> bool:
    tensor = query.tensor(value) if value is not None and not value.is_graph_input() else None
    return tensor is not None and tensor.size == 1 and not tensor.shape.rank() and float(tensor.numpy()) == 1


EXPANSIONS: dict[str, Rewrite] = {"Log": log}
