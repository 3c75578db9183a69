"""Turn weights that are constants, or initializers of branches, into initializers of the main graph."""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.bounded import MOST_BYTES
from ortpipe.errors import ModelError
from ortpipe.graph.choice.parameters import choose
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Names, used_names
from ortpipe.graph.forms.modes import is_statistic
from ortpipe.graph.importing.sizes import count_names


def float_constants(graph: ir.Graph) -> list[ir.Value]:
    """Return the float arrays that are outputs of constant nodes or initializers of subgraphs."""
    candidates: list[ir.Value] = []
    for node in graph.all_nodes():
        if node.op_type in ("Constant", "ConstantOfShape") and not node.domain:
            candidates += node.outputs
        for inner in query.subgraphs(node):
            candidates += inner.initializers.values()
    return [value for value in candidates if _is_array(value) and value.uses() and not value.is_graph_output()]


def lift(
    graph: ir.Graph,
    constants: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    named: Callable[[Sequence[str]], Collection[str]] | None = None,
) -> list[str]:
    """Turn the constants that training would change into initializers, in place; return their names.

    Args:
        graph: the graph that gets the initializers, also for constants of its subgraphs.
        constants: the candidates, from `float_constants`.
        outputs: the outputs that training may use.
        named: selects among the candidates' names; by default those that `choose` would train as initializers, and
            running statistics.

    >>> graph = ir.from_onnx_text('''<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,2] y) {
    ...   w = Constant<value = float[2,2] {1, 2, 3, 4}>() c = Constant<value = float[2] {1, 2}>()
    ...   s = Sub(X, c) y = MatMul(s, w) }''').graph
    >>> lift(graph, float_constants(graph), graph.outputs), [node.op_type for node in graph]
    (['w'], ['Constant', 'Sub', 'MatMul'])
    """
    names, taken = Names(used_names(graph)), count_names(graph)
    pairs = dict[str, tuple[ir.Value, ir.Value]]()
    for constant in constants:
        tensor, name = _tensor(constant), str(constant.name)
        assert tensor is not None
        name = name if taken[name] == 1 else names.fresh(name)
        dims: list[Any] = list(tensor.shape)
        initializer = ir.val(name, tensor.dtype, dims, const_value=tensor)
        tensor.name = name
        initializer.meta["origin"] = {"initializer": str(constant.name)}
        if constant.producer() is not None:
            initializer.meta["origin"] = {"node": str(constant.name), "attribute": "value"}
        graph.register_initializer(initializer)
        constant.replace_all_uses_with(initializer)
        pairs[name] = constant, initializer
    if named is not None:
        chosen = {*named(list(pairs))}
    else:
        chosen = {name for output in outputs for name in choose(graph, output).trained}
        chosen |= {name for name, (_, initializer) in pairs.items() if is_statistic(initializer)}
    for name, (constant, initializer) in pairs.items():
        if name not in chosen:
            initializer.replace_all_uses_with(constant)
            del graph.initializers[name]
        elif (node := constant.producer()) is not None:
            assert node.graph is not None
            node.graph.remove(node, safe=True)
        else:
            del constant.graph.initializers[str(constant.name)]  # type: ignore[union-attr]
    return [name for name in pairs if name in chosen]


def _is_array(value: ir.Value) -> bool:
    tensor = _tensor(value)
    return tensor is not None and tensor.dtype in query.FLOATS and tensor.size > 1


def _tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """Return a constant's tensor, also a ConstantOfShape's if its sizes are constant."""
    node = value.producer()
    if node is None or node.op_type != "ConstantOfShape":
        return query.tensor(value)
    sizes, filled = query.constant(node.inputs[0]), node.attributes.get("value")
    number = np.zeros(1, np.float32) if filled is None else filled.as_tensor().numpy()
    if sizes is None:
        return None
    if min(sizes, default=0) < 0 or math.prod(map(int, sizes)) * number.itemsize > MOST_BYTES:
        rule = f"A ConstantOfShape must have at most {MOST_BYTES:,} bytes, and no negative size."
        raise ModelError(rule, got=f"{value.name!r} of sizes {sizes.tolist()}", fix="Export it again.")
    return ir.tensor(np.full(sizes, number[0]), name=str(value.name))
