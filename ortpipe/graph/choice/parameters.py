"""Choose the float initializers that are parameters, and give each node that reads a shared one its own copy."""

from collections.abc import Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ortpipe.graph.choice.readers import Use, UseFinder, size_of
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Names, used_names
from ortpipe.graph.core.origins import KEY, mark
from ortpipe.graph.core.selection import Choice

NOTHING: Mapping[str, str | None] = {}


def choose(graph: ir.Graph, *outputs: ir.Value, declared: Mapping[str, str | None] = NOTHING) -> Choice:
    """Choose the parameters among the float initializers that any of the outputs depends on.

    Parameters are weights of products, convolutions, normalizations and recurrences, slopes of PRelu, embeddings, and
    initializers that are added to their results or scale them per channel. Masks, tables of sines and cosines,
    bases of Fourier transforms, settings of operators, running statistics, single numbers and everything else are not.
    `declared` overrides this by name: the reason not to train an initializer, or None to train it.

    >>> text = '''<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,3] y)
    ...   <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}, float[1] t = {0.5}>
    ...   { h = MatMul(X, w) z = Add(h, b) y = Mul(z, t) }'''
    >>> graph = ir.from_onnx_text(text).graph
    >>> choose(graph, graph.outputs[0])
    Choice(trained=('w', 'b'), untrained={'t': 'one number'}, shared={})
    """
    reader = UseFinder(graph)
    trained, untrained, shared = [], dict[str, str](), dict[str, int]()
    for name in query.float_initializers(graph, *outputs):
        value = graph.initializers[name]
        uses = reader.uses(value)
        source_name = value.meta.get(KEY, {}).get("initializer", name)  # of which it may be a copy
        reason = declared[source_name] if source_name in declared else _why_not(value, uses)
        if reason is not None:
            untrained[name] = reason
            continue
        trained.append(name)
        if (count := len({use.node for use in uses if use.trained})) > 1:
            shared[name] = count
    return Choice(tuple(trained), untrained, shared)


def _why_not(value: ir.Value, uses: Sequence[Use]) -> str | None:
    """Return why an initializer is not trained, or None for a parameter."""
    if value.shape == ():
        return "one number"
    if reasons := [use.reason for use in uses if use.reason]:
        weight = any(use.trained for use in uses)
        return reasons[0] + (", and a weight elsewhere: untying it gives each its own copy" if weight else "")
    if any(use.trained for use in uses):
        return None
    if size_of(value) == 1:
        return "one number"
    operators = dict.fromkeys(use.node.op_type for use in uses)
    if [*operators] == ["Loop"]:  # `capture_unchanged` has taken out the other states
        return "a state that Loop changes at each step, where a weight stays the same"
    return f"read by {' and '.join(operators)}, not as a weight" if uses else "no gradient reaches it"


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
