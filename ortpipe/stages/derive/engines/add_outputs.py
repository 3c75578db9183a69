"""Outputs of a model that the training build's graph of its gradients lacks."""

from collections.abc import Sequence

import onnx_ir as ir

from ortpipe.graph.core import query


def add_outputs(model: ir.Model, source: ir.Model, outputs: Sequence[str]) -> None:
    """Add outputs to a model; the nodes that it lacks for them are moved from `source`.

    Values of the same name must be equal in both models.
    """
    graph, present = model.graph, query.values(model.graph)
    source_values = query.values(source.graph)
    needed = {source_values[name] for name in outputs if name not in present}
    missing = []
    for node in reversed(source.graph):
        if not needed.isdisjoint(node.outputs):
            missing.append(node)
            read = (*(x for x in node.inputs if x is not None), *query.captured(node))
            needed.update(x for x in read if x.name not in present)
    source.graph.outputs.clear()
    for name, value in source_values.items():
        if name in present:
            value.replace_all_uses_with(present[name])
        elif value in needed and value.is_initializer():
            del source.graph.initializers[name]
            graph.register_initializer(value)
        elif value in needed and value.producer() is None:
            source.graph.inputs.remove(value)
            graph.inputs.append(value)
    source.graph.remove(missing)
    graph.extend(reversed(missing))
    graph.outputs.extend(v for v in (present.get(n) or source_values[n] for n in outputs) if v not in graph.outputs)
    graph.opset_imports.update({d: v for d, v in source.opset_imports.items() if d not in graph.opset_imports})
