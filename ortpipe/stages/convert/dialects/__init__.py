"""Operators of onnxruntime's own domain, which optimised files hold, written in ONNX's: weights keep their names."""

from collections.abc import Mapping
from typing import NamedTuple

import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.errors import ConvertError
from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.graph.check import infer
from ortpipe.graph.parameters import some
from ortpipe.graph.rewrite import Rewrite, rewrite
from ortpipe.stages.convert.dialects.attention import ATTENTION
from ortpipe.stages.convert.dialects.forms import MICROSOFT, Unranked, unsupported
from ortpipe.stages.convert.dialects.layers import LAYERS
from ortpipe.stages.convert.dialects.quantized import Mode, write_float

REWRITES: Mapping[str, Rewrite] = {**LAYERS, **ATTENTION}


# A sum that lies halfway between two integers, but for a rounding error, may go either way: one of some 255 steps, in a
# few layers. Most files agree in every bit.
ROUNDING = 2e-2
ROUNDING_IN_STEPS = 5e-2  # an LSTM's own kernel rounds its input and its state in every step, which an LSTM does not
WEIGHTS_ONLY = frozenset(("DequantizeLinear", "GatherBlockQuantized", "MatMulNBits"))


class Read(NamedTuple):
    """What was done, in words, and how far predictions may be off on account of rounding to integers."""

    notes: tuple[str, ...]
    rounding: float


def read_dialects(model: ir.Model, quantized: Mode) -> Read:
    """Rewrite in place quantized and fused operators in ONNX's own for floats.

    Raises:
        ConvertError: an operator, or a form of one, has no equal among ONNX's.
    """
    notes, rounding = [], 0.0
    if names := write_float(model, quantized):
        rounding = ROUNDING_IN_STEPS if "DynamicQuantizeLSTM" in names else ROUNDING
        rounds = ", and still rounds activations to them (convert.source.quantized=float does not)"
        kept = rounds if quantized == "fake" else ", and clips activations and does not round them"
        kept = "" if WEIGHTS_ONLY.issuperset(names) else kept
        notes.append(f"reads {some(names)} as operators of floats: weights are no longer integers{kept}")
    if names := write_standard(model):
        notes.append(f"writes onnxruntime's {some(names)} in standard operators")
    return Read(tuple(notes), rounding)


def write_standard(model: ir.Model) -> tuple[str, ...]:
    """Rewrite in place what com.microsoft's operators compute; return their names.

    Raises:
        ConvertError: an operator, or a form of one, has no equal among ONNX's.
    """
    for node in model.graph.all_nodes():
        if node.op_type == "SimplifiedLayerNormalization":  # which onnxruntime adds to ONNX's own domain
            node.domain = MICROSOFT
    nodes = [node for node in model.graph.all_nodes() if node.domain.startswith(MICROSOFT)]
    if not nodes:
        return ()
    names = tuple(dict.fromkeys(node.op_type for node in nodes if node.op_type in REWRITES))
    if names:
        infer(model)
        rewrite(model.graph, {name: _ranked(model, rule) for name, rule in REWRITES.items()}, MICROSOFT, nodes)
        infer(model)
    _refuse_others(model.graph)
    return names


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
    """Refuse an operator of onnxruntime's domains that hides weights from what reads it: its layout, or its type.

    Of others derive says what they cut off, where something in front of them is trained.
    """
    floats = [output for output in graph.outputs if output.dtype is None or output.dtype in query.FLOATS]
    for value in query.ancestors(floats):
        node = value.producer()
        if node is None or not node.domain.startswith(MICROSOFT) or not query.float_initializers(graph, value):
            continue
        if node.domain != MICROSOFT or value.type is None:
            raise ConvertError(
                "onnxruntime's fused operators are written as ONNX's own where there is a rule.",
                got=query.called(node) + (", of which nothing is known" if node.domain == MICROSOFT else ""),
                fix=f"Declare the type of {value.name!r} in the file (value_info); freeze the weights in front of it."
                if node.domain == MICROSOFT
                else "It holds weights in one processor's layout: convert the file from which this one was optimised.",
            )
