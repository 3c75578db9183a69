"""Passes over a finished epoch graph: each keeps the function and makes its nodes fewer or faster.

`Fast` is the door, and `PASSES` are those that each engine needs, in order. It also sorts nodes:
onnxruntime sorts a graph's nodes again in each of its passes. It keeps ready nodes in a list and walks that list for
every node. If nodes come long after their inputs, as the updates of a step and derivatives of activations do, the time
grows with the square of their number.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Arrays
from ortpipe.fast.blocked import block_channels
from ortpipe.fast.convolutions import convolution_gradients
from ortpipe.fast.engine_choice import choose
from ortpipe.fast.epoch import EpochGraph, fix_batch_size, maker_for_one
from ortpipe.fast.hoist import hoist, replace_output, sink
from ortpipe.fast.stacks import stacked
from ortpipe.fast.thresholds import THRESHOLDS
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.graph.core.protos import graphs
from ortpipe.graph.core.rewrite import rewrite
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.stages.train.layout import Layout
from ortpipe.stages.train.speed import Speed
from ortpipe.stages.train.training import Training

GEMM_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
Pass = Callable[[EpochGraph], None]


def start_at_rate(epoch: EpochGraph) -> None:
    """Start the backward pass at −η if every gradient is first multiplied by it, since the backward pass is linear."""
    body = epoch.body
    by_name = query.values(body)
    gradients = dict.fromkeys(by_name[name] for name in epoch.gradients)
    scaling = [use.node for gradient in gradients for use in gradient.uses()]
    rates = {x for node in scaling for x in node.inputs if x is not None and x not in gradients}
    seed = body.initializers.get(epoch.seed or "")
    if seed is None or len(rates) != 1 or any(node.op_type != "Mul" for node in scaling):
        return
    [rate] = rates
    alike = (rate.shape, rate.dtype) == (seed.shape, seed.dtype)
    if rate not in body.inputs or not alike or query.array(seed) != 1:
        return
    body.initializers.pop(str(seed.name))
    ir.convenience.replace_all_uses_with(seed, rate)
    for node in scaling:
        [gradient] = [x for x in node.inputs if x is not None and x is not rate]
        ir.convenience.replace_all_uses_with(node.outputs[0], gradient)
    body.remove(scaling, safe=True)


def join_products(epoch: EpochGraph) -> None:
    """Merge x + A·B, c·x + A·B and A·B + b with a bias b [K] into one Gemm, which adds while it multiplies.

    With the bias inside, `carry_biases_as_rows` can carry it as a row.
    """
    joined = list[ir.Node]()

    def gemm(op: Builder, node: ir.Node) -> list[ir.Value] | None:
        for x, product in (node.inputs, node.inputs[::-1]):
            maker = maker_for_one(product)
            if x is None or product is None or maker is None or maker.op_type not in ("Gemm", "MatMul"):
                continue
            attributes = {name: attribute.value for name, attribute in maker.attributes.items()}
            if maker.op_type == "Gemm" and (any(maker.inputs[2:]) or product.shape != x.shape):
                continue
            if maker.op_type == "MatMul" and not _is_layer(maker, x):
                continue
            x, beta = _unscaled(x) if maker.op_type == "Gemm" else (x, 1.0)
            joined.append(maker)
            return [op.Gemm(*maker.inputs[:2], x, **{**attributes, "beta": beta})]  # the training build writes beta 0
        return None

    rewrite(epoch.body, {"Add": gemm})
    epoch.body.remove(joined, safe=True)


def _is_layer(product: ir.Node, bias: ir.Value) -> bool:
    """Return whether a product of matrices [N, C] · [C, K] and a bias [K] have the types and sizes of a Gemm."""
    sizes = [query.sizes(x) or [] for x in (*product.inputs, bias)]
    ranks = [*map(len, sizes)] == [2, 2, 1] and product.outputs[0].dtype in GEMM_TYPES
    return ranks and sizes[1][1] == sizes[2][0] is not None


def _unscaled(x: ir.Value) -> tuple[ir.Value, float]:
    """Return y and c if x = y·c has no other use and c is a float32 number, else x and 1."""
    node = x.producer()
    if node is None or node.op_type != "Mul" or len(x.uses()) != 1 or x.is_graph_output():
        return x, 1.0
    y, factor = node.inputs[0], query.constant(node.inputs[1])
    if y is None or y.shape != x.shape or factor is None or factor.shape or np.float32(factor) != factor:
        return x, 1.0
    return y, float(factor)


def carry_biases_as_rows(epoch: EpochGraph) -> None:
    """Write b ← b + 1ᵀ·G, with a bias [K] and gradients G [N, K], as one Gemm on b as [1, K], like updates of weights.

    The inputs and outputs of the epoch keep their shapes: biases are reshaped before and after the Scan.
    """
    scan, body, graph = epoch.scan, epoch.body, epoch.model.graph
    names = Names(used_names(graph))
    front, back = (Builder(graph, "bias", before=place, names=names) for place in (scan, None))
    axis = np.zeros(1, np.int64)
    for place, (bias, moved) in enumerate(zip(list(body.inputs), list(body.outputs), strict=False)):
        rows = _summed_rows(bias, moved)
        if rows is None or rows.shape is None or rows.dtype is None:
            continue
        inside = Builder(body, "bias", before=moved.producer(), names=names)
        row = inside.Gemm(inside.const(np.ones((1, rows.shape[0]), rows.dtype.numpy())), rows, bias)
        row.type, row.shape = moved.type, ir.Shape([1, rows.shape[1]])
        bias.shape, body.outputs[place] = row.shape, row
        scan.replace_input_with(place, front.Unsqueeze(scan.inputs[place], front.const(axis)))
        ended = scan.outputs[place]
        replace_output(graph, place, back.Squeeze(ended, back.const(axis)))
        ended.shape = row.shape


def _summed_rows(bias: ir.Value, moved: ir.Value) -> ir.Value | None:
    """Return the G of moved = bias + 1ᵀ·G if every use of the bias also accepts a row."""
    node = moved.producer()
    if node is None or node.op_type != "Add" or bias not in node.inputs or bias.shape is None or bias.shape.rank() != 1:
        return None
    [total] = [x for x in node.inputs if x is not bias] or [None]
    summing = total.producer() if total is not None else None
    if total is None or summing is None or len(total.uses()) != 1:
        return None
    keeps_axes = summing.attributes.get_int("keepdims", 1)
    if summing.op_type == "MatMul" and _is_ones(summing.inputs[0]):
        rows = summing.inputs[1]
    elif summing.op_type == "ReduceSum" and query.axes(summing, None) == [0] and not keeps_axes:
        rows = summing.inputs[0]
    else:
        return None
    as_row = all(use.node is node or (use.node.op_type == "Gemm" and use.idx == 2) for use in bias.uses())
    static = rows is not None and rows.shape is not None and rows.shape.rank() == 2 and rows.shape.is_static()
    return rows if as_row and static else None


def _is_ones(value: ir.Value | None) -> bool:
    node, ones = value.producer() if value is not None else None, query.constant(value)
    if node is not None and node.op_type == "ConstantOfShape" and "value" in node.attributes:
        ones = node.attributes["value"].as_tensor().numpy()
    vector = value is not None and value.shape is not None and value.shape.rank() == 1
    return vector and ones is not None and bool((ones == 1).all())


def share_exponentials(epoch: EpochGraph) -> None:
    """Replace exp(LogSoftmax(x)) by Softmax(x): a compiler computes the exponentials and sums of both once."""

    def softmax(op: Builder, node: ir.Node) -> list[ir.Value] | None:
        maker = node.inputs[0].producer() if node.inputs[0] is not None else None
        if maker is None or maker.op_type != "LogSoftmax":
            return None
        return [op.Softmax(maker.inputs[0], axis=maker.attributes.get_int("axis", -1))]

    rewrite(epoch.body, {"Exp": softmax})


def read_batch_statistics(epoch: EpochGraph) -> None:
    """Output Σx/n and Σ(x − Σx/n)²/n per channel from the node that normalizes x, which saves four passes over x.

    With momentum 0, the node's running statistics are the batch's; running ← m · running + (1 − m) · batch's follows as
    separate nodes. The node gets copies of the running statistics, which onnxruntime's kernel may overwrite.
    """
    names = Names(used_names(epoch.model.graph))
    for node in [node for node in epoch.body.all_nodes() if node.op_type == "BatchNormalization"]:
        if not node.attributes.get_int("training_mode", 0) or not all(map(_carried, node.inputs[3:])):
            continue
        x = node.inputs[0]
        means = list(_averages(x))
        squares = [square for mean in means for square in _squares(x, mean)]
        variances = [variance for square in squares for variance in _averages(square)]
        if means and variances:
            _hand_out(node, names, means, variances)


def _carried(value: ir.Value | None) -> bool:
    """Return whether a value is an input of the step, or its Abs (convert reads running variances through Abs)."""
    node = value.producer() if value is not None else None
    if node is not None and node.op_type == "Abs":
        return _carried(node.inputs[0])
    return value is not None and value.is_graph_input()


def _averages(x: ir.Value | None) -> Iterator[ir.Value]:
    """Yield the averages of x over all axes except the second, which keep their axes."""
    if x is None or x.shape is None or not x.shape.is_static():
        return
    sizes = x.shape.numpy()
    axes, count = [0, *range(2, len(sizes))], math.prod(sizes) // max(sizes[1], 1)
    for use in list(x.uses()):
        if use.node.op_type != "ReduceSum" or not use.node.attributes.get_int("keepdims", 1):
            continue
        if query.axes(use.node, len(sizes)) != axes:
            continue
        for further in list(use.node.outputs[0].uses()):
            if further.node.op_type == "Div" and further.idx == 0 and _number(further.node.inputs[1]) == count:
                yield further.node.outputs[0]


def _number(value: ir.Value | None) -> float | None:
    """Return the scalar that a value always equals: a constant, or a quotient or cast of constants."""
    constant, node = query.constant(value), value.producer() if value is not None else None
    if constant is not None:
        return float(constant) if constant.shape == () else None
    if node is None or node.op_type not in ("Cast", "Div"):
        return None
    numbers = [_number(x) for x in node.inputs]
    if node.op_type == "Cast" or None in numbers:
        return numbers[0]
    above, below = numbers
    return above / below if above is not None and below else None


def _squares(x: ir.Value | None, mean: ir.Value) -> Iterator[ir.Value]:
    """Yield (x − mean)²."""
    for use in mean.uses():
        if use.node.op_type == "Sub" and use.node.inputs[0] is x and use.idx == 1:
            [centred] = use.node.outputs
            products = (user.node for user in centred.uses() if user.node.op_type == "Mul" and user.idx == 0)
            yield from (node.outputs[0] for node in products if node.inputs[1] is centred)


def _hand_out(node: ir.Node, names: Names, *statistics: list[ir.Value]) -> None:
    graph, place = node.graph, ir.node("Identity", node.outputs[:1])
    assert isinstance(graph, ir.Graph)
    graph.insert_after(node, place)
    front, behind = (Builder(graph, "batch", before=before, names=names) for before in (node, place))
    momentum = node.attributes.get_float("momentum", 0.9)
    node.attributes["momentum"] = ir.AttrFloat32("momentum", 0.0)
    for i, values in enumerate(statistics):
        old, batch = node.inputs[3 + i], node.outputs[1 + i]
        assert old is not None
        users, ends = list(batch.uses()), [end for end, value in enumerate(graph.outputs) if value is batch]
        node.replace_input_with(3 + i, front.Neg(old))
        moved = behind.Add(
            behind.Mul(old, behind.like(momentum, old)), behind.Mul(batch, behind.like(1 - momentum, old))
        )
        moved.type, moved.shape = batch.type, batch.shape
        for use in users:
            use.node.replace_input_with(use.idx, moved)
        for end in ends:
            graph.outputs[end] = moved
            moved.name, batch.name = batch.name, moved.name
        for value in values:
            wide = behind.Reshape(batch, behind.const([-1 if n == 1 else 1 for n in range(len(value.shape or ()))]))
            wide.type, wide.shape = value.type, value.shape
            ir.convenience.replace_all_uses_with(value, wide)
    graph.remove(place, safe=True)


# in order: later passes rewrite nodes that earlier passes created
PASSES: tuple[Pass, ...] = (
    convolution_gradients,
    read_batch_statistics,
    start_at_rate,
    join_products,
    hoist,
    carry_biases_as_rows,
    sink,
)
# XLA does these fusions itself: measured, its step is up to 11 % faster without them.
PASSES_OF_XLA: tuple[Pass, ...] = (convolution_gradients, share_exponentials)
PASSES_OF_C: tuple[Pass, ...] = (start_at_rate, join_products, share_exponentials)


class Fast(Speed):
    """The hooks of training: stacks of small parameters, rewritten epochs and sorted nodes."""

    def layout(self, layout: Layout, arrays: Arrays) -> Layout:
        """Stack small parameters, if there are many."""
        return stacked(layout, arrays)

    def rewrite(
        self, epoch: ir.Model, size: int, seed: str, gradients: Sequence[str], runtime: RuntimeConfig | None
    ) -> None:
        """Fix the batch size of an epoch graph and run the passes over it, in place."""
        fix_batch_size(epoch, size)
        for one in passes_for(runtime or RuntimeConfig()):
            one(EpochGraph(epoch, seed, tuple(gradients)))

    def engine(self, training: Training, steps: int, obstacle: Callable[[str], str | None]) -> tuple[str, str]:
        """Return the engine for `runtime.engine=auto`, see `engine_choice.py`."""
        return choose(training, steps, obstacle)

    def prepare(self, model: onnx.ModelProto) -> dict[str, bool]:
        """Sort the nodes of deep graphs, and plan the memory of small values.

        Subnormal numbers count as 0, because on them steps can take twice as long.
        """
        axes = ([d.dim_value for d in v.type.tensor_type.shape.dim] for g in graphs(model.graph) for v in g.value_info)
        size = 4 * sum(map(math.prod, axes))  # 0 if a size is unknown
        sort_by_readiness(model, size)
        return {"planned": size < THRESHOLDS.planned_bytes, "flushes": True}


def passes_for(runtime: RuntimeConfig) -> Sequence[Pass]:
    """Return the passes for the engine and device that run an epoch."""
    if runtime.engine != "onnxruntime":
        return PASSES_OF_XLA if runtime.engine == "xla" else PASSES_OF_C
    return (block_channels, *PASSES) if runtime.provider == "cpu" else PASSES


def sort_by_readiness(model: onnx.ModelProto, size: int = 0) -> None:
    """Move each node of a deep graph to where its inputs are ready; results stay the same, but peak memory changes.

    The runtime schedules backward from the last node without a user. If that is the update of the last layer, each
    weight is updated as soon as its gradient is ready; if it is that of the first layer, the gradients of all layers'
    outputs must exist before. So nodes without a user move to the end, the first ready one last, if there are few.
    Many would fill the list while they wait, so a graph with many of them and wide values is left unchanged. `size` is
    the size of all values in bytes, 0 if unknown.
    """
    wide = size >= THRESHOLDS.wide_bytes
    for graph in graphs(model.graph):
        if len(graph.node) >= (THRESHOLDS.sorted_wide_nodes if wide else THRESHOLDS.sorted_nodes):
            _sort(graph, wide=wide)


def _sort(graph: onnx.GraphProto | onnx.FunctionProto, *, wide: bool) -> None:
    nodes = [*graph.node]
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    read = [{makers[name] for name in _read(node) if name in makers} for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for place, sources in enumerate(read):
        for source in sources:
            readers[source].append(place)
    missing = [len(sources) for sources in read]
    ready, order = deque(place for place, count in enumerate(missing) if not count), list[int]()
    while ready:
        order.append(place := ready.popleft())
        for reader in readers[place]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    unread = [place for place in order if not readers[place]]
    if len(unread) <= THRESHOLDS.unread_share * len(nodes):
        order = [*(place for place in order if readers[place]), *reversed(unread)]
    elif wide:
        return
    ranks = {name: rank for rank, place in enumerate(order) for name in nodes[place].output if name}
    graph.node.sort(key=lambda node: ranks[next(filter(None, node.output))])


def _read(node: onnx.NodeProto) -> list[str]:
    """Return the names that a node and its subgraphs read."""
    inner = [graph for a in node.attribute for graph in (*([a.g] if a.HasField("g") else []), *a.graphs)]
    outputs = [output.name for graph in inner for output in graph.output]
    return [*node.input, *outputs, *(name for graph in inner for child in graph.node for name in _read(child))]
