"""What the training build (1.19.2) differentiates right: all else is refused by name before it starts.

Both tables were found by comparing its gradients with central finite differences; see `ort_rewrites.py` for what is
rewritten before it comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
import onnx_ir as ir

from ortpipe.errors import DeriveError
from ortpipe.graph import query
from ortpipe.stages.derive.engines.ort_rewrites import between

# fmt: off
DIFFERENTIATED = frozenset((
    "Abs", "Add", "Cast", "Clip", "Concat", "Conv", "Cos", "Div", "Erf", "Exp", "Expand", "Flatten", "Gather",
    "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "Identity", "LeakyRelu", "Log", "LogSoftmax",
    "MatMul", "Max", "Min", "Mul", "Neg", "Pad", "Pow", "ReduceLogSumExp", "ReduceMean", "ReduceSum", "Relu",
    "Reshape", "ScatterElements", "ScatterND", "Sigmoid", "Sin", "Slice", "Softmax", "Split", "Sqrt", "Squeeze",
    "Sub", "Tanh", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where",
))
# fmt: on
NO_GRADIENT = "the training build has no gradient for it"


def _attribute(node: ir.Node, name: str, default: object = None) -> object:
    return node.attributes[name].value if name in node.attributes else default


def _outputs_used(node: ir.Node) -> int:
    return sum(bool(o.uses()) or o.is_graph_output() for o in node.outputs)


def _backwards(node: ir.Node) -> bool:
    steps = node.inputs[4] if len(node.inputs) > 4 else None
    known = query.constant(steps)
    return steps is not None and (known is None or bool((known < 0).any()))


# operator → why it is refused, and in which of its forms
FAULTS: dict[str, tuple[str, Callable[[ir.Node], bool]]] = {
    "If": ("control flow kills the gradient builder", lambda n: True),
    "Loop": ("control flow kills the gradient builder", lambda n: True),
    "Scan": ("control flow has no gradient", lambda n: True),
    "AveragePool": ("it is rewritten only where its sizes are static", lambda n: True),
    "BatchNormalization": ("its gradient is wrong, and is rewritten only where the rank is known", lambda n: True),
    "ConvTranspose": ("its gradient has no kernel on the CPU", lambda n: True),
    "GRU": ("its gradient kills the process in some forms", lambda n: True),
    "LSTM": ("its gradient kills the process in some forms, and is wrong with peepholes", lambda n: True),
    "MaxPool": ("its gradient with Indices is no operator that a model may hold", lambda n: True),
    "Pad": (
        "its gradient holds for mode=constant and pads of every axis",
        lambda n: _attribute(n, "mode", "constant") != "constant" or len(n.inputs) > 3,
    ),
    "Resize": ("its gradient has no kernel on the CPU", lambda n: True),
    "ScatterElements": (
        "its gradient with a reduction is wrong",
        lambda n: _attribute(n, "reduction", "none") != "none",
    ),
    "ScatterND": ("its gradient with a reduction is wrong", lambda n: _attribute(n, "reduction", "none") != "none"),
    "Slice": ("its gradient holds for positive steps that are constants", _backwards),
    "Split": (
        "its gradient with an unused output is wrong, and is rewritten only where the sizes are known",
        lambda n: _outputs_used(n) < len(n.outputs),
    ),
}


def refuse_known_faults(model: onnx.ModelProto, loss: str, sources: Sequence[str]) -> None:
    """Raise for the first operator between the sources and the loss whose gradient is wrong or missing.

    Args:
        model: the loss model.
        loss: its loss output.
        sources: the parameters and inputs that are differentiated.

    Raises:
        DeriveError: names the operator, its node and the reason.
    """
    for node in between(ir.from_proto(model).graph, loss, sources):
        own = node.domain == ""
        reason, applies = FAULTS.get(node.op_type if own else "", (NO_GRADIENT, lambda n: False))
        if own and node.op_type in DIFFERENTIATED and not applies(node):
            continue
        raise DeriveError(
            "The ort engine differentiates only what the training build does right.",
            got=f"{node.op_type} at node {node.name or node.outputs[0].name!r}: {reason}",
            fix="Choose derive=native, or freeze the parameters in front of it (derive.frozen).",
        )
