"""Put one model inside another: its nodes between values of the other graph, its weights as constants."""

from collections.abc import Mapping

import onnx
import onnx_ir as ir
from onnx import version_converter

from ortpipe.errors import ModelError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.check import FAILURES, inferred, parsed
from ortpipe.graph.core.edit import initializers_to_constants
from ortpipe.graph.files.serial import OPSET
from ortpipe.graph.importing.lower import lowered


def prepared(model: onnx.ModelProto, op: Builder) -> ir.Model:
    """Return a model for `inline`, at the opset of the graph that `op` writes; ModelError: no equivalent there."""
    low, target = lowered(model), op.graph.opset_imports.get("", OPSET)
    version = next((entry.version for entry in low.opset_import if entry.domain == ""), target)
    if version != target:
        try:
            low = version_converter.convert_version(low, target)
        except FAILURES as error:
            raise ModelError(
                "A model inside another one must have an equivalent at its opset.",
                got=f"opset {version} inside opset {target}: {str(error).strip().splitlines()[-1]}",
                fix=f"Convert it to opset {target} (onnx.version_converter), or both models to a later one.",
            ) from error
    return parsed(inferred(low))


def inline(op: Builder, model: ir.Model, feeds: Mapping[str, ir.Value], prefix: str) -> None:
    """Move the nodes of a prepared model behind those that `op` has written; the model's graph keeps its outputs.

    Args:
        op: writes at the end of a graph.
        model: the prepared model, which is empty afterwards.
        feeds: the value for each of its inputs.
        prefix: goes in front of the names of its values.
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
            if value.shape is not None:  # names of dimensions mean nothing in the other graph
                value.shape = ir.Shape([d if isinstance(d, int) else None for d in value.shape])
        node.name = node.outputs[0].name
    nodes = list(graph)
    graph.remove(nodes)
    op.graph.extend(nodes)
    imports = {domain: v for domain, v in graph.opset_imports.items() if domain not in op.graph.opset_imports}
    op.graph.opset_imports.update(imports)
