"""Weights that a file holds as constants: some exporters write no initializers, and leave branches theirs."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.branches import count_names
from ortpipe.graph.builder import Names, used_names
from ortpipe.graph.modes import is_statistic
from ortpipe.graph.parameters import choose


def float_constants(graph: ir.Graph) -> list[ir.Value]:
    """Return the arrays of floats that constant nodes give, and those that are initializers of subgraphs."""
    found: list[ir.Value] = []
    for node in graph.all_nodes():
        if node.op_type in ("Constant", "ConstantOfShape") and not node.domain:
            found += node.outputs
        for inner in query.subgraphs(node):
            found += inner.initializers.values()
    return [value for value in found if _is_array(value) and value.uses() and not value.is_graph_output()]


def lift(
    graph: ir.Graph,
    constants: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    named: Callable[[Sequence[str]], Collection[str]] | None = None,
) -> list[str]:
    """Make initializers of those constants that training would move, in place, and return their names.

    Args:
        graph: where they become initializers, those of its subgraphs too.
        constants: of its `float_constants`, what may become one.
        outputs: what training may be for.
        named: which of the names become one; by default what `choose` would train if they were initializers, and
            running statistics.

    >>> graph = ir.from_onnx_text('''<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,2] y) {
    ...   w = Constant<value = float[2,2] {1, 2, 3, 4}>() c = Constant<value = float[2] {1, 2}>()
    ...   s = Sub(X, c) y = MatMul(s, w) }''').graph
    >>> lift(graph, float_constants(graph), graph.outputs), [node.op_type for node in graph]
    (['w'], ['Constant', 'Sub', 'MatMul'])
    """
    names, taken = Names(used_names(graph)), count_names(graph)
    pairs = dict[str, tuple[ir.Value, ir.Value]]()
    for old in constants:
        tensor, name = _tensor(old), str(old.name)
        assert tensor is not None
        name = name if taken[name] == 1 else names.fresh(name)
        dims: list[Any] = list(tensor.shape)
        new = ir.val(name, tensor.dtype, dims, const_value=tensor)
        tensor.name = name
        new.meta["origin"] = {"initializer": str(old.name)}
        if old.producer() is not None:
            new.meta["origin"] = {"node": str(old.name), "attribute": "value"}
        graph.register_initializer(new)
        old.replace_all_uses_with(new)
        pairs[name] = old, new
    if named is not None:
        chosen = {*named(list(pairs))}
    else:
        chosen = {name for output in outputs for name in choose(graph, output).trained}
        chosen |= {name for name, (_, new) in pairs.items() if is_statistic(new)}
    for name, (old, new) in pairs.items():
        if name not in chosen:
            new.replace_all_uses_with(old)
            del graph.initializers[name]
        elif (node := old.producer()) is not None:
            assert node.graph is not None
            node.graph.remove(node, safe=True)
        else:
            del old.graph.initializers[str(old.name)]  # type: ignore[union-attr]
    return [name for name in pairs if name in chosen]


def _is_array(value: ir.Value) -> bool:
    tensor = _tensor(value)
    return tensor is not None and tensor.dtype in query.FLOATS and tensor.size > 1


def _tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """Return what a value always is; of a ConstantOfShape, whose sizes are known, too."""
    node = value.producer()
    if node is None or node.op_type != "ConstantOfShape":
        return query.tensor(value)
    sizes, filled = query.constant(node.inputs[0]), node.attributes.get("value")
    number = np.zeros(1, np.float32) if filled is None else filled.as_tensor().numpy()
    return None if sizes is None else ir.tensor(np.full(sizes, number[0]), name=str(value.name))
