"""The two modes of a graph: training (batch statistics, active dropout) and inference."""

import onnx
import onnx_ir as ir

from ortpipe.errors import ModelError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.graph.core.operators import is_random as is_random_node

VARIANCE, UNBIASED = "ortpipe.variance", "unbiased"  # in a training BatchNormalization's metadata_props


def statistics(graph: ir.Graph, output: ir.Value) -> dict[str, ir.Value]:
    """Return each running statistic (an initializer's name) and its next value, for the layers before an output.

    A running mean or variance becomes m · old + (1 − m) · batch, with ONNX's momentum m and the variance over N; nodes
    marked UNBIASED use that over N − 1, as PyTorch does. A layer that runs twice updates them twice.
    """
    names, updated = Names(used_names(graph)), dict[str, ir.Value]()
    last: dict[ir.Value, ir.Value] = {}
    needed = query.ancestors([output])
    for node in graph:
        if node.op_type != "BatchNormalization" or not _trains(node) or needed.isdisjoint(node.outputs):
            continue
        for i, y in zip((3, 4), node.outputs[1:], strict=True):  # in training mode ONNX wants all three outputs
            old = node.inputs[i]
            assert old is not None
            if not old.is_initializer():
                continue
            if not is_statistic(old):
                raise ModelError(
                    "A running statistic of a training BatchNormalization must have no other use.",
                    got=f"{old.name!r}, which other nodes read too",
                    fix="Give each place its own copy{@untie}.",
                )
            y.name = y.name or names.fresh(f"{old.name}/next")
            y.type, y.shape = old.type, old.shape
            if old in last:
                node.replace_input_with(i, last[old])
            unbiased = i == 4 and node.metadata_props.get(VARIANCE) == UNBIASED
            last[old] = updated[str(old.name)] = _unbiased(node, y) if unbiased else y
    return updated


def _unbiased(node: ir.Node, moved: ir.Value) -> ir.Value:
    """Return the running variance with Σ (x − μ)² / (N − 1): m · old + (moved − m · old) · N / (N − 1).

    The node reads a copy of the old one, which onnxruntime's kernel would overwrite: its output is no graph output.
    """
    x, old, graph = node.inputs[0], node.inputs[4], node.graph
    assert x is not None and old is not None and isinstance(graph, ir.Graph)
    node.replace_input_with(4, Builder(graph, f"{moved.name}/old", before=node).Abs(old))  # it is not negative
    op = Builder(graph, str(moved.name), before=next(iter(graph[graph.index(node) + 1 :]), None))
    with op.formulas():
        count = op.cast(op.Size(x) / op.Size(old), x)
        decayed = old * node.attributes.get_float("momentum", 0.9)
        factor = count / op.Max(count - 1, op.like(1, count))  # the variance of one value is 0
        unbiased: ir.Value = decayed + (moved - decayed) * op.cast(factor, moved)
    unbiased.type, unbiased.shape = moved.type, moved.shape
    return unbiased


def is_statistic(value: ir.Value) -> bool:
    """Return whether a value is the running mean or variance of a BatchNormalization and nothing else."""
    uses = value.uses()
    return bool(uses) and all(use.node.op_type == "BatchNormalization" and use.idx in (3, 4) for use in uses)


def open_statistics(graph: ir.Graph) -> list[str]:
    """Return the constants that training BatchNormalizations update; the caller makes them inputs with a default.

    Where the updated ones are no graph outputs, onnxruntime (1.19.2, 1.23.2) overwrites the constants, after merging
    equal ones of up to 8 numbers: a row of ones elsewhere in the graph would change with the first run. It merges no
    defaults of inputs. Nodes that read the updated values get them from a copy.
    """
    moved = dict[str, ir.Value]()
    for node in [node for node in graph.all_nodes() if node.op_type == "BatchNormalization" and _trains(node)]:
        for i, y in zip((3, 4), node.outputs[1:], strict=False):
            old = node.inputs[i]
            if old is None or graph.initializers.get(str(old.name)) is not old:
                continue
            moved[str(old.name)] = old
            if y.uses():
                assert node.graph is not None
                op = Builder(node.graph, f"{y.name}/old", before=node, names=Names(used_names(graph)))
                node.replace_input_with(i, op.Neg(op.Neg(old)))
    return list(moved)


def to_inference(model: ir.Model) -> bool:
    """Set a model to inference (running statistics, no dropout); return whether that changed anything.

    >>> text = '''<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,2] y) {
    ...     on = Constant<value = bool {1}>() half = Constant<value_float=0.5>() y = Dropout(X, half, on) }'''
    >>> model = ir.from_onnx_text(text)
    >>> to_inference(model), [len(node.inputs) for node in model.graph if node.op_type == "Dropout"]
    (True, [1])
    """
    nodes = [node for node in model.graph.all_nodes() if _trains(node)]
    for node in nodes:
        if node.op_type == "Dropout":
            node.resize_inputs(1)
        else:
            _use_running(node)
    return bool(nodes)


def settle(graph: ir.Graph) -> tuple[str, ...]:
    """Let training BatchNormalizations in loops and branches use their running statistics, which nothing updates there.

    Returns:
        The names of their outputs.
    """
    candidates = [node for node in graph.all_nodes() if node.graph is not graph and node.op_type != "Dropout"]
    training = [node for node in candidates if _trains(node)]
    for node in training:
        _use_running(node)
    return tuple(str(node.outputs[0].name) for node in training)


def set_seeds(model: ir.Model, seed: int) -> None:
    """Give the random nodes the seeds `seed`, `seed + 1`, …, in the graph's order."""
    for number, node in enumerate(filter(is_random_node, model.graph.all_nodes())):
        kind = int if node.op_type == "Dropout" else float
        node.attributes["seed"] = ir.convenience.convert_attribute("seed", kind(seed + number))


def is_random(model: ir.Model) -> bool:
    """Return whether a model's values differ from run to run (any node is random)."""
    return any(map(is_random_node, model.graph.all_nodes()))


def moves_statistics(node: onnx.NodeProto) -> bool:
    """Return whether a node is a BatchNormalization in training mode."""
    return node.op_type == "BatchNormalization" and any(a.name == "training_mode" and a.i for a in node.attribute)


def _trains(node: ir.Node) -> bool:
    if node.op_type == "Dropout":
        return len(node.inputs) > 2
    return node.op_type == "BatchNormalization" and bool(node.attributes.get_int("training_mode", 0))


def _use_running(node: ir.Node) -> None:
    del node.attributes["training_mode"]
    for x, y in zip(node.inputs[3:], node.outputs[1:], strict=False):
        assert x is not None
        ir.convenience.replace_all_uses_with(y, x)
    node.resize_outputs(1)
