"""Split initializers that several nodes read, for exporters merge equal ones."""

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ortpipe.graph.choice.readers import Use, UseFinder
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Names, used_names
from ortpipe.graph.core.origins import KEY, mark


def untie(model: ir.Model, *outputs: ir.Value) -> None:
    """Give each node that reads a shared weight its own copy, in place.

    The copy of `w` for node `/layer0/MatMul` is `w/layer0/MatMul`. Nodes in between that depend on `w` alone (a
    Transpose, say) are copied, too. Values do not change.

    >>> text = '''<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,2] y)
    ...   <float[2,2] w = {1, 2, 3, 4}> { [first] h = MatMul(X, w) [second] y = MatMul(h, w) }'''
    >>> model = ir.from_onnx_text(text)
    >>> untie(model, model.graph.outputs[0])
    >>> list(model.graph.initializers)
    ['w/first', 'w/second']
    """
    graph = model.graph
    reader, names = UseFinder(graph), Names(used_names(graph))
    replaced: list[ir.Value] = []
    for name in query.float_initializers(graph, *outputs):
        value = graph.initializers[name]
        uses = reader.uses(value)
        groups: dict[tuple[ir.Node, str], list[Use]] = {}  # one node may read a bias and a mean
        for use in uses:
            groups.setdefault((use.node, use.reason), []).append(use)
        scanned = any(node.op_type == "Scan" for use in uses for node in use.path)
        if len(groups) < 2 or scanned or not any(use.trained for use in uses):
            continue
        for (node, reason), group in groups.items():
            label = str(node.name or node.outputs[0].name).strip("/")
            label += f"/{reason.replace(' ', '_')}" if reason else ""
            fresh = names.fresh(f"{name}/{label}")
            copy = ir.val(fresh, const_value=ir.tensor(query.array(value), dtype=value.dtype, name=fresh))
            mark(copy, value.meta.get(KEY) or {"initializer": name})
            graph.register_initializer(copy)
            copies = {value: copy}
            for use in group:
                node.replace_input_with(use.place, _recomputed(use, copies, names))
        replaced.append(value)
    graph.inputs[:] = [i for i in graph.inputs if i not in replaced]  # before IR 4, initializers are inputs too
    RemoveUnusedNodesPass()(model)


def _recomputed(use: Use, copies: dict[ir.Value, ir.Value], names: Names) -> ir.Value:
    """Return the value that a node reads, recomputed from the copy."""
    for step in use.path:
        if step.outputs[0] in copies:
            continue
        inputs = [copies.get(x, x) if x is not None else None for x in step.inputs]
        node = ir.node(
            step.op_type,
            inputs,
            dict(step.attributes),
            domain=step.domain,
            num_outputs=len(step.outputs),
            name=names.fresh(str(step.name or step.op_type)),
        )
        for old, new in zip(step.outputs, node.outputs, strict=True):
            new.name, new.type, new.shape = names.fresh(str(old.name)), old.type, old.shape
            copies[old] = new
        assert use.node.graph is not None
        use.node.prepend(node)
    return copies[use.value]
