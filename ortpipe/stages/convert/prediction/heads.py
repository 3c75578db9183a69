"""The head of a graph: the kind of its prediction, and the logits behind it, found by running candidates.

The end of the graph, behind its last weights, runs on random numbers. A candidate is the logits if its softmax or
sigmoid equals the results; no pattern of operators is searched.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.errors import ConvertError, ModelError
from ortpipe.graph.choice.parameters import choose
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.operators import having
from ortpipe.metrics.classes import Seen, look, sigmoid, softmax
from ortpipe.runtime.session import Session

Kind = Literal["softmax", "sigmoid", "pair", "log_softmax", "log_sigmoid", "opposite"]
RANDOM, LAYOUT = having("random"), having("layout")
RECURRENT = having("recurrent")  # they read weights, and their values lie in [−1, 1]
NODES = 200  # largest end of a graph that runs
ROWS, NUMBERS = 64, 1 << 18  # random rows, and the most numbers that they hold
SIZES = (5, 7, 3, 11)  # of dimensions of unknown size
LARGEST, LARGEST_HALF = 6.0, 2.5  # deviation of random numbers: their exponentials are finite
CLOSE, CLOSE_HALF = 2e-5, 5e-3  # a Clip to [1e-5, 1 − 1e-5] only guards a logarithm


@dataclass(frozen=True)
class Head:
    """The kind of a prediction, as the graph alone shows it.

    The prediction is softmax(logits), sigmoid(logits), the pair [1 − σ(logits), σ(logits)], the logarithm of one of
    them, opposite scores [−s, s], or none of these kinds.
    """

    kind: Kind | None = None
    logits: ir.Value | None = None  # of the prediction's type and shape ([N, 1] for a pair)
    bound: Seen | None = None  # values of the prediction for any weights; None: unknown
    axis: int | None = None  # of classes, where the prediction is not [N, K]


class _Candidate(NamedTuple):
    """A value that may be the logits."""

    value: ir.Value
    moves: Sequence[ir.Node]  # that give it the prediction's shape
    array: np.ndarray


def read_head(graph: ir.Graph, output: ir.Value) -> Head:
    """Return the head of an output.

    Logits of another shape or type get the prediction's, in place: the activation is written anew behind the changes,
    and a new value has the output's name.
    """
    nodes, edges = _end(graph, output)
    if len(nodes) > NODES or output.shape is None:
        return Head()
    is_recurrent = not edges.isdisjoint(RECURRENT)
    if not nodes:
        return Head(bound=None if is_recurrent else "outside")
    path = _path(nodes, output)
    try:
        prediction, candidates = _run(graph, nodes, path)
    except (ModelError, ValueError):  # of sizes that the file does not declare
        return Head()
    if prediction.ndim == 0 or np.isnan(prediction).any():
        return Head()
    bound, _ = _bound(prediction)
    _check_gradient(output, prediction, bound, path)
    if prediction.shape[1:] == (2,) and (prediction[:, 0] == -prediction[:, 1]).all() and prediction.any():
        return Head("opposite", bound=bound)
    is_log = bound == "outside" and (prediction <= 0).all()
    values = np.exp(prediction) if is_log else prediction
    shares, axis = _bound(values)
    kind, axis_found, chosen = _activation(values, candidates)
    axis = axis_found or axis if prediction.ndim != 2 else None
    if is_log and shares == "sum":
        return Head("log_softmax", output, bound, axis)
    if is_log and chosen is not None:
        return Head("log_sigmoid", chosen.value, bound)
    if chosen is None or kind is None:
        return Head(bound=None if bound == "outside" and is_recurrent else bound, axis=axis)
    logits = chosen.value
    if chosen.moves or logits.dtype != output.dtype:
        logits = _move_activation(graph, kind, chosen, output, -1 if axis is None else axis)
    return Head(kind, logits, bound, axis)


def _end(graph: ir.Graph, output: ir.Value) -> tuple[list[ir.Node], set[str]]:
    """Return the nodes behind the last weights, and the operators in front of them."""
    weights = {graph.initializers[name] for name in choose(graph, output).trained}
    end, edges, stack = set[ir.Node](), set[str](), [output]
    while stack:
        node = stack.pop().producer()
        if node is None or node in end:
            continue
        if not weights.isdisjoint(node.inputs) or node.op_type in RANDOM or query.subgraphs(node):
            edges.add(node.op_type)
            continue
        end.add(node)
        stack += [value for value in node.inputs if value is not None]
    return [node for node in graph if node in end], edges


def _path(nodes: Sequence[ir.Node], output: ir.Value) -> list[ir.Value]:
    """Return the values from an output back to the last weights, by the inputs that are like their results."""
    path, inside = [output], {*nodes}
    while (node := path[-1].producer()) is not None and node in inside:
        floats = [v for v in node.inputs if v is not None and v.dtype in query.FLOATS and query.constant(v) is None]
        if not floats:
            break
        path.append(next((v for v in floats if v.shape == node.outputs[0].shape), floats[0]))
    return path


def _run(graph: ir.Graph, nodes: Sequence[ir.Node], path: Sequence[ir.Value]) -> tuple[np.ndarray, list[_Candidate]]:
    """Return the prediction of random numbers behind the last weights, and the candidates, the nearest first."""
    protos = [ir.to_proto(node) for node in nodes]
    variants: list[tuple[ir.Value, str, Sequence[ir.Node]]] = [(value, str(value.name), ()) for value in path]
    for place, value in enumerate(path):
        makers = (maker.producer() for maker in reversed(path[:place]))
        if moves := [node for node in makers if node is not None and node.op_type in LAYOUT]:
            variants.append((value, _append(protos, moves, str(value.name)), moves))
    inner = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None and v not in inner)
    tensors = {v: tensor for v in read if (tensor := query.tensor(v)) is not None}
    inputs = [v for v in read if v not in tensors]
    outputs = [name for value, name, _ in variants if value not in inputs or name != value.name]
    body = onnx.GraphProto(name="end", node=protos, input=map(ir.to_proto, inputs))
    body.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    body.initializer.extend(ir.to_proto(ir.tensor(array.numpy(), name=v.name)) for v, array in tensors.items())
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in graph.opset_imports.items()]
    session = Session(onnx.ModelProto(ir_version=10, graph=body, opset_import=opsets))
    runs = [feeds | dict(zip(outputs, session.run(feeds, outputs), strict=True)) for feeds in _feeds(inputs, path[0])]
    arrays = {name: np.concatenate([np.atleast_1d(run[name]) for run in runs]) for _, name, _ in variants}
    return arrays[str(path[0].name)], [_Candidate(value, moves, arrays[name]) for value, name, moves in variants[1:]]


def _append(protos: list[onnx.NodeProto], moves: Sequence[ir.Node], value: str) -> str:
    """Append nodes that move a value; return the name of the result."""
    for node in moves:
        proto = ir.to_proto(node)
        proto.input[0], value = value, f"{proto.output[0]}/moved/{len(protos)}"
        proto.output[0] = proto.name = value
        protos.append(proto)
    return value


def _feeds(inputs: Sequence[ir.Value], output: ir.Value) -> Iterator[dict[str, np.ndarray]]:
    """Yield random numbers for inputs, which have the rows of an output; if their number is fixed, several times."""
    sizes, rng = dict[str, int](), np.random.default_rng(0)
    rows = output.shape[0] if output.shape else 1
    for d in (d for v in inputs for d in v.shape or () if not isinstance(d, int)):
        sizes.setdefault(str(d), SIZES[len(sizes) % len(SIZES)])
    shapes = {v: [d if isinstance(d, int) else sizes[str(d)] for d in v.shape or ()] for v in inputs}
    per_row = max((math.prod(shape[1:]) for shape in shapes.values()), default=1)
    count = min(ROWS, max(1, NUMBERS // max(1, per_row)))
    if not isinstance(rows, int):
        shapes = {v: [count, *s[1:]] if v.shape and v.shape[0] == rows else s for v, s in shapes.items()}
    for _ in range(count if rows == 1 else 4 if isinstance(rows, int) else 1):
        yield {str(v.name): _random(rng, v.dtype, shape) for v, shape in shapes.items()}


def _random(rng: np.random.Generator, kind: ir.DataType | None, shape: Sequence[int]) -> np.ndarray:
    """Return numbers of any size, of another size in each row; 0 or 1 for integers."""
    assert kind is not None
    if kind not in query.FLOATS:
        return rng.integers(0, 2, shape).astype(kind.numpy())
    scale = rng.uniform(0.3, LARGEST if kind.itemsize > 2 else LARGEST_HALF, (*shape[:1], *(1 for _ in shape[1:])))
    return (scale * rng.normal(size=shape)).astype(kind.numpy())


def _bound(prediction: np.ndarray) -> tuple[Seen, int | None]:
    """Return what values look like, and the axis along which they sum to 1."""
    for axis in range(1, prediction.ndim):
        if (seen := look(np.moveaxis(prediction, axis, -1))) == "sum":
            return seen, axis
    return look(prediction), None


def _check_gradient(output: ir.Value, prediction: np.ndarray, bound: Seen, path: Sequence[ir.Value]) -> None:
    """Reject values that are only 0 or 1, and several labels as pairs of columns."""
    values = np.unique(prediction)
    if values.tolist() == [0, 1]:
        raise ConvertError(
            "A prediction must have a gradient.",
            got=f"output {output.name!r} is 0 or 1 whatever the weights are, so that it has no gradient",
            fix=f"End the graph in front of it: {{at}}prediction={path[1].name if len(path) > 1 else '…'} with "
            "{at}scores=logits.",
        )
    count = prediction.shape[1] // 2 if prediction.ndim == 2 and prediction.shape[1] % 2 == 0 else 0
    if bound == "unit" and count > 1 and np.allclose(prediction[:, :count] + prediction[:, count:], 1, atol=CLOSE):
        raise ConvertError(
            "Two columns [1 − p, p] are the probabilities of one label.",
            got=f"{count} labels side by side in output {output.name!r}",
            fix="Name p, the value in front of the pairs, with {at}prediction, or convert the estimator itself.",
        )


def _activation(
    prediction: np.ndarray, candidates: Sequence[_Candidate]
) -> tuple[Kind | None, int | None, _Candidate | None]:
    """Return which activation of which candidate is the prediction, and the axis of a softmax.

    Of several, the nearest one that needs no change; a farther one only if it is other numbers, such as z of z − max z.
    """
    matches: list[tuple[Kind, int | None, _Candidate]] = []
    for candidate in candidates:
        close = CLOSE_HALF if min(candidate.array.dtype.itemsize, prediction.dtype.itemsize) <= 2 else CLOSE
        for kind, axis, values in _activated(candidate.array, prediction.shape):
            if np.abs(values - prediction.astype(np.float64)).max(initial=0) <= close:
                matches.append((kind, axis, candidate))
    best = [f for f in matches if not f[2].moves and f[2].array.dtype == prediction.dtype] or matches
    others = (f for f in best if not np.allclose(f[2].array, best[0][2].array, rtol=1e-2))
    return next(others, best[0]) if best else (None, None, None)


def _activated(array: np.ndarray, shape: tuple[int, ...]) -> Iterator[tuple[Kind, int | None, np.ndarray]]:
    """Yield each activation of an array that has this shape, with its name and axis."""
    z = array.astype(np.float64)
    if array.shape == shape:
        yield "sigmoid", None, sigmoid(z)
        for axis in range(1, array.ndim):
            if shape[axis] > 1:
                yield "softmax", axis, np.moveaxis(softmax(np.moveaxis(z, axis, -1)), -1, axis)
    if (array.shape, shape[1:]) == ((shape[0], 1), (2,)):
        yield "pair", None, np.hstack([sigmoid(-z), sigmoid(z)])


def _move_activation(graph: ir.Graph, kind: Kind, chosen: _Candidate, output: ir.Value, axis: int) -> ir.Value:
    """Write the activation behind the changes of shape and type; return the new logits."""
    producer, name, logits = output.producer(), output.name, chosen.value
    assert producer is not None and output.dtype is not None and logits.dtype is not None
    op = Builder(graph, "head", before=producer)
    z = logits
    for node in chosen.moves:
        z = replay(op, node, z)
    z = op.cast(z, output) if logits.dtype != output.dtype else z
    z.type, z.shape = output.type, ir.Shape([*list(output.shape or ())[:-1], 1]) if kind == "pair" else output.shape
    is_wider = output.dtype.itemsize > logits.dtype.itemsize  # keep the activation in its own, narrower type
    inner = op.cast(z, logits) if is_wider else z
    p = op.Softmax(inner, axis=axis) if kind == "softmax" else op.Sigmoid(inner)
    p = op.cast(p, output) if is_wider else p
    p = op.Concat(op.Sub(op.like(1, output), p), p, axis=-1) if kind == "pair" else p
    p.type, p.shape = output.type, output.shape
    output.replace_all_uses_with(p, replace_graph_outputs=True)
    output.name, p.name = f"{name}/replaced", name
    return z


def replay(op: Builder, node: ir.Node, x: ir.Value) -> ir.Value:
    """Write a node again, with another first input; return its result."""
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    result: ir.Value = getattr(op, node.op_type)(x, *node.inputs[1:], **attributes)
    return result
