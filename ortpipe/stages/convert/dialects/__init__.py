"""Operators of onnxruntime's own domain, which optimised files hold, written in ONNX's: weights keep their names."""

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.errors import ConvertError
from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.graph.check import infer
from ortpipe.graph.rewrite import Rewrite, rewrite
from ortpipe.stages.convert.dialects.attention import ATTENTION
from ortpipe.stages.convert.dialects.forms import MICROSOFT, WAY_OUT, Unranked, called, unsupported
from ortpipe.stages.convert.dialects.layers import LAYERS

REWRITES: Mapping[str, Rewrite] = {**LAYERS, **ATTENTION}


def write_standard(model: ir.Model) -> None:
    """Rewrite in place what com.microsoft's operators compute; refuse those without a rule on the way of a gradient.

    Raises:
        ConvertError: an operator, or a form of one, has no equal among ONNX's.
    """
    for node in model.graph.all_nodes():
        if node.op_type == "SimplifiedLayerNormalization":  # which onnxruntime adds to ONNX's own domain
            node.domain = MICROSOFT
    nodes = [node for node in model.graph.all_nodes() if node.domain.startswith(MICROSOFT)]
    if not nodes:
        return
    if any(node.op_type in REWRITES for node in nodes):
        infer(model)
        rewrite(model.graph, {name: _ranked(model, rule) for name, rule in REWRITES.items()}, MICROSOFT, nodes)
        infer(model)
    _refuse_others(model.graph)


def _ranked(model: ir.Model, rule: Rewrite) -> Rewrite:
    """Return the rule, before which shapes are inferred if it asks for one: inference stops at every such operator."""

    def write(op: Builder, node: Node) -> list[Value | None] | None:
        if any(x is not None and x.type is None for x in node.inputs):
            infer(model)
        try:
            values = rule(op, node)
        except Unranked:
            infer(model)
            try:
                values = rule(op, node)
            except Unranked as error:
                raise unsupported(node, f"the rank of {error.value.name!r} is not known") from error
        return None if values is None else [_own(op, node, *pair) for pair in zip(node.outputs, values, strict=False)]

    return write


def _own(op: Builder, node: Node, old: Value, new: Value | None) -> Value | None:
    """Return what takes an output's name; None where nobody reads it."""
    if not (old.uses() or old.is_graph_output()):
        return None
    return op.Identity(new) if new in node.inputs else new


def _refuse_others(graph: ir.Graph) -> None:
    """Refuse an operator of onnxruntime's domains that lies between weights and a float output."""
    floats = [output for output in graph.outputs if output.dtype is None or output.dtype in query.FLOATS]
    for value in query.ancestors(floats):
        node = value.producer()
        if node is None or not node.domain.startswith(MICROSOFT) or not query.float_initializers(graph, value):
            continue
        layout = node.domain != MICROSOFT
        raise ConvertError(
            "onnxruntime's fused operators are written as ONNX's own; one without a rule has no gradient.",
            got=called(node),
            fix="It holds weights in one processor's layout: convert the file from which this one was optimised."
            if layout
            else WAY_OUT,
        )
