"""One model inside another: its nodes between values of the other graph, its weights constants."""

from collections.abc import Mapping

import onnx
import onnx_ir as ir
from onnx import version_converter

from ortpipe.errors import ModelError
from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.graph.check import FAILURES, inferred, parsed
from ortpipe.graph.edit import initializers_to_constants
from ortpipe.graph.lower import lowered
from ortpipe.graph.serial import OPSET


def prepared(model: onnx.ModelProto, op: Builder) -> ir.Model:
    """Return a model at the opset of the graph that `op` writes, for `inline`; ModelError: it has no equal there."""
    own, target = lowered(model), op.graph.opset_imports.get("", OPSET)
    version = next((entry.version for entry in own.opset_import if entry.domain == ""), target)
    if version != target:
        try:
            own = version_converter.convert_version(own, target)
        except FAILURES as error:
            raise ModelError(
                "A model inside another one must have an equal at its opset.",
                got=f"opset {version} inside opset {target}: {str(error).strip().splitlines()[-1]}",
                fix=f"Bring it to opset {target} (onnx.version_converter), or both models to a later one.",
            ) from error
    return parsed(inferred(own))


def inline(op: Builder, model: ir.Model, feeds: Mapping[str, ir.Value], prefix: str) -> None:
    """Move the nodes of a prepared model behind those that `op` has written; its own graph's outputs stay its outputs.

    Args:
        op: writes at the end of a graph.
        model: what is moved, and left empty.
        feeds: the value that each of its inputs is.
        prefix: the first part of the names of its values there.
    """
    graph = model.graph
    initializers_to_constants(graph)
    for value in query.data_inputs(graph):
        ir.convenience.replace_all_uses_with(value, feeds[str(value.name)], replace_graph_outputs=True)
    for node in graph.all_nodes():
        for inner in query.subgraphs(node):
            for value in (*inner.inputs, *inner.initializers.values()):
                op.rename(value, f"{prefix}/{value.name}")
        for value in node.outputs:
            if value.name:
                op.rename(value, f"{prefix}/{value.name}")
            if value.shape is not None:  # its names of dimensions are not those of the other graph
                value.shape = ir.Shape([d if isinstance(d, int) else None for d in value.shape])
        node.name = node.outputs[0].name
    nodes = list(graph)
    graph.remove(nodes)
    op.graph.extend(nodes)
    imports = {domain: v for domain, v in graph.opset_imports.items() if domain not in op.graph.opset_imports}
    op.graph.opset_imports.update(imports)
