"""Operators of onnxruntime's own domain, as in optimised files, written in ONNX's: weights keep their names."""

from collections.abc import Mapping
from typing import NamedTuple

import onnx_ir as ir
from onnx_ir import Node

from ortpipe.errors import ConvertError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.inference import infer
from ortpipe.graph.core.rewrite import Rewrite, rewrite
from ortpipe.graph.core.selection import some
from ortpipe.stages.convert.dialects.attention import ATTENTION
from ortpipe.stages.convert.dialects.forms import MICROSOFT, is_read, with_ranks
from ortpipe.stages.convert.dialects.layers import LAYERS
from ortpipe.stages.convert.dialects.quantized import Mode, write_float

REWRITES: Mapping[str, Rewrite] = {**LAYERS, **ATTENTION}


# Tolerance of predictions, relative to the largest, and its reason. Most files agree in every bit.
ROUNDING = (
    2e-2,  # one of some 255 steps, in a few layers
    "sums that lie between two integers are rounded otherwise, and on an x86 processor without VNNI onnxruntime's own "
    "sums of uint8 × int8 may overflow.",
)
ROUNDING_IN_STEPS = (
    5e-2,
    "DynamicQuantizeLSTM rounds its input and state to integers in every step, and the LSTM of floats that is trained "
    "in its place does not. Or take the file from before it was quantized.",
)
WEIGHTS_ONLY = frozenset(("DequantizeLinear", "GatherBlockQuantized", "MatMulNBits"))


class DialectReport(NamedTuple):
    """Notes on the rewritten nodes, and the tolerance of predictions because of rounding to integers."""

    notes: tuple[str, ...]
    rounding: float = 0.0
    reason: str = ""


def read_dialects(model: ir.Model, quantized: Mode) -> DialectReport:
    """Rewrite quantized and fused operators as ONNX's own for floats, in place.

    Raises:
        ConvertError: an operator, or a form of one, has no equivalent in ONNX.
    """
    notes, rounding = [], (0.0, "")
    if names := write_float(model, quantized):
        rounding = ROUNDING_IN_STEPS if "DynamicQuantizeLSTM" in names else ROUNDING
        rounds = ", and still rounds activations to them (convert.source.quantized=float does not)"
        activations = rounds if quantized == "fake" else ", and clips activations and does not round them"
        activations = "" if WEIGHTS_ONLY.issuperset(names) else activations
        notes.append(f"reads {some(names)} as operators of floats: weights are no longer integers{activations}")
    if names := write_standard(model):
        notes.append(f"writes onnxruntime's {some(names)} in standard operators")
    return DialectReport(tuple(notes), *rounding)


def write_standard(model: ir.Model) -> tuple[str, ...]:
    """Rewrite com.microsoft's operators as ONNX's own, in place; return their names.

    Raises:
        ConvertError: an operator, or a form of one, has no equivalent in ONNX.
    """
    for node in model.graph.all_nodes():
        if node.op_type == "SimplifiedLayerNormalization":  # onnxruntime puts it into ONNX's own domain
            node.domain = MICROSOFT
    nodes = [node for node in model.graph.all_nodes() if node.domain.startswith(MICROSOFT)]
    if not nodes:
        return ()
    names = tuple(dict.fromkeys(node.op_type for node in nodes if node.op_type in REWRITES))
    if names:
        infer(model)
        rewrite(model.graph, {name: _standard(model, rule) for name, rule in REWRITES.items()}, MICROSOFT, nodes)
        infer(model)
    _check_remaining(model.graph)
    return names


def _standard(model: ir.Model, rule: Rewrite) -> Rewrite:
    """Return a rule that has the types and ranks it needs, and whose outputs may replace the node's."""
    rule = with_ranks(model, rule)

    def write(op: Builder, node: Node) -> list[ir.Value | None] | None:
        if any(x is not None and x.type is None for x in node.inputs):
            infer(model)
        ys = rule(op, node)
        return (
            None
            if ys is None
            else [
                (op.Identity(new) if new in node.inputs else new) if is_read(old) else None
                for old, new in zip(node.outputs, ys, strict=False)
            ]
        )

    return write


def _check_remaining(graph: ir.Graph) -> None:
    """Reject operators of onnxruntime's domains that hide weights, by their layout or an unknown type.

    For the others, derive reports the trained weights that they cut off.
    """
    floats = [output for output in graph.outputs if output.dtype is None or output.dtype in query.FLOATS]
    for value in query.ancestors(floats):
        node = value.producer()
        if node is None or not node.domain.startswith(MICROSOFT) or not query.float_initializers(graph, value):
            continue
        if node.domain != MICROSOFT or value.type is None:
            raise ConvertError(
                "A fused operator of onnxruntime must have an equivalent in ONNX's own operators.",
                got=query.called(node) + (", whose output type is unknown" if node.domain == MICROSOFT else ""),
                fix=f"Declare the type of {value.name!r} in the file (value_info); freeze the weights in front of it."
                if node.domain == MICROSOFT
                else "Its weights have one processor's layout: convert the file from which this one was optimised.",
            )
