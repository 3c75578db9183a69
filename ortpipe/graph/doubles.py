"""Functions with only float32 kernels in onnxruntime, written in operators with float64 kernels."""

from typing import Any

import onnx
import onnx_ir as ir

from ortpipe.graph.builder import Builder
from ortpipe.graph.check import infer, parsed
from ortpipe.graph.query import all_nodes
from ortpipe.graph.rewrite import rewrite


def cos(op: Builder, x: Any) -> ir.Value:
    """cos x = 1 − 2 · sin²(x / 2), within one rounding of 1."""
    if x.dtype != ir.DataType.DOUBLE:
        return op.Cos(x)
    half = op.Sin(op.Mul(x, 0.5))
    return op.Sub(1, op.Mul(op.Mul(half, half), 2))


def cosh(op: Builder, x: Any) -> ir.Value:
    """cosh x = (eˣ + e⁻ˣ) / 2."""
    if x.dtype != ir.DataType.DOUBLE:
        return op.Cosh(x)
    return op.Mul(op.Add(op.Exp(x), op.Exp(op.Neg(x))), 0.5)


def sinh(op: Builder, x: Any) -> ir.Value:
    """sinh x = tanh x · cosh x, accurate around 0."""
    return op.Sinh(x) if x.dtype != ir.DataType.DOUBLE else op.Mul(op.Tanh(x), cosh(op, x))


def tan(op: Builder, x: Any) -> ir.Value:
    """tan x = sin x / cos x."""
    return op.Tan(x) if x.dtype != ir.DataType.DOUBLE else op.Div(op.Sin(x), cos(op, x))


FORMS = {"Cos": cos, "Cosh": cosh, "Sinh": sinh, "Tan": tan}


def _in_double(op: Builder, node: ir.Node) -> list[ir.Value]:
    return [FORMS[node.op_type](op, node.inputs[0])]


def with_double_kernels(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the float64 functions of FORMS rewritten."""
    if not any(node.op_type in FORMS for node in all_nodes(model.graph)):
        return model
    graph_model = parsed(model)
    infer(graph_model)
    nodes = [
        n for n in graph_model.graph.all_nodes() if n.op_type in FORMS and n.outputs[0].dtype == ir.DataType.DOUBLE
    ]
    if not nodes:
        return model
    rewrite(graph_model.graph, dict.fromkeys(FORMS, _in_double), nodes=nodes)
    return ir.to_proto(graph_model)
