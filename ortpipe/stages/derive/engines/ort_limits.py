"""What the training build (1.19.2) differentiates silently wrong, or dies of: refused before it starts.

Each line was found by comparing its gradients with central finite differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
import onnx_ir as ir

from ortpipe.errors import DeriveError
from ortpipe.graph import query


def _attribute(node: ir.Node, name: str, default: object = None) -> object:
    return node.attributes[name].value if name in node.attributes else default


def _outputs_used(node: ir.Node) -> int:
    return sum(bool(o.uses()) or o.is_graph_output() for o in node.outputs)


FAULTS: dict[str, tuple[str, Callable[[ir.Node], bool]]] = {
    "If": ("control flow kills the gradient builder", lambda node: True),
    "Loop": ("control flow kills the gradient builder", lambda node: True),
    "Scan": ("control flow has no gradient", lambda node: True),
    "BatchNormalization": (
        "its gradient in inference mode is wrong, and in training mode the running statistics are lost",
        lambda n: True,
    ),
    "Dropout": ("its gradient in inference mode with a mask is wrong", lambda n: len(n.outputs) > 1),
    "Conv": (
        "its gradient with auto_pad=SAME_* is wrong",
        lambda n: "SAME" in str(_attribute(n, "auto_pad", "")),
    ),
    "Split": ("its gradient with an unused output is wrong", lambda n: _outputs_used(n) < len(n.outputs)),
    "Where": ("its gradient through a broadcast branch is wrong", lambda n: not _same_shapes(n)),
    "ScatterElements": (
        "its gradient with a reduction is wrong",
        lambda n: _attribute(n, "reduction", "none") != "none",
    ),
    "ConvTranspose": ("its gradient has no kernel on the CPU", lambda n: True),
    "Gelu": (
        "its gradient with approximate=tanh is that of the exact form",
        lambda n: _attribute(n, "approximate", "none") == "tanh",
    ),
    "LSTM": ("its gradient with peepholes is wrong", lambda n: len(n.inputs) > 7 and n.inputs[7] is not None),
    "MaxPool": ("its gradient is no operator that a model may hold", lambda n: True),
    "AveragePool": ("its gradient is no operator that a model may hold", lambda n: True),
}


def _same_shapes(node: ir.Node) -> bool:
    shapes = [v.shape for v in node.inputs[1:] if v is not None]
    return len(shapes) == 2 and shapes[0] is not None and shapes[0] == shapes[1]


def refuse_known_faults(model: onnx.ModelProto, loss: str, sources: Sequence[str]) -> None:
    """Raise for the first operator between the sources and the loss whose gradient would be wrong.

    Args:
        model: the loss model.
        loss: its loss output.
        sources: the parameters and inputs that are differentiated.

    Raises:
        DeriveError: names the operator, its node and the reason.
    """
    graph = ir.from_proto(model).graph
    needed = query.ancestors([query.value(graph, loss)])
    reached = {query.value(graph, name) for name in sources}
    for node in graph:
        inputs = [*node.inputs, *query.captured(node)]
        if not any(v in reached for v in inputs if v is not None) or not any(o in needed for o in node.outputs):
            continue
        reached.update(node.outputs)
        reason, applies = FAULTS.get(node.op_type, ("", lambda _: False))
        if node.domain == "" and applies(node):
            raise DeriveError(
                "The ort engine differentiates only what the training build does right.",
                got=f"{node.op_type} at node {node.name or node.outputs[0].name!r}: {reason}",
                fix="Export the model without this form, or freeze the parameters in front of it (derive.frozen).",
            )
