"""Pairs of embeddings as one output [N, 2·K]: of two outputs, or of one that the model computes for both inputs."""

from collections.abc import Collection, Sequence

import onnx_ir as ir

from ortpipe.errors import ConvertError, nearest
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.graph.core.inference import infer

PAIR = "pair"


def end_at_pair(model: ir.Model, names: Sequence[str], fixed: Collection[str]) -> str:
    """End a model at a pair of embeddings, in place; return a note.

    Args:
        model: with embeddings [N, K].
        names: the values with the embeddings; of one value, the pair is that of both inputs of a row, [N, 2, …].
        fixed: inputs that hold no rows.
    """
    graph = model.graph
    embeddings = [_embedding(graph, name) for name in names]
    width, *others = [query.width(value) for value in embeddings]
    if len(names) > 2 or width is None or others not in ([], [width]):
        shapes = ", ".join(f"{value.name} {value.shape}" for value in embeddings)
        rule = "{key} must name one or two embeddings [N, K] of the same width K."
        raise ConvertError(rule, key="pair", got=shapes, fix="Name values in front of or behind a projection.")
    first, second = embeddings[0], embeddings[-1]
    op = Builder(graph, PAIR)
    if others:
        pair = op.Concat(first, second, axis=-1)
    else:
        for value in [value for value in query.data_inputs(graph) if value.name not in fixed]:
            _take_two(graph, value)
        pair = op.Reshape(first, [-1, 2 * width])
    pair.dtype = first.dtype
    op.rename(pair, PAIR)
    graph.outputs.append(pair)
    keep_outputs(model, [str(pair.name)])
    infer(model)
    each = "of both inputs of each row" if not others else "side by side"
    return f"ends at {pair.name!r}: {' and '.join(map(repr, names))}, {each}"


def _embedding(graph: ir.Graph, name: str) -> ir.Value:
    value, outputs = query.values(graph).get(name), [str(output.name) for output in graph.outputs]
    if value is None or value.producer() is None:
        rule, fix = "{key} must name outputs, or values inside of the graph.", nearest(name, outputs)
        raise ConvertError(rule, key="pair", got=repr(name), fix=fix)
    if value.dtype in query.FLOATS and value.shape is not None and value.shape.rank() == 2:
        return value
    others = [str(o.name) for o in graph.outputs if o.shape is not None and o.shape.rank() == 2]
    fix = f"Choose {' or '.join(others)}." if others else "Add the pooling over tokens to the file, such as their mean."
    got = f"{name!r} of shape {value.shape}"
    raise ConvertError("{key} must name embeddings, one vector of floats per row.", key="pair", got=got, fix=fix)


def _take_two(graph: ir.Graph, value: ir.Value) -> None:
    """Let an input take two of its rows in each row, [N, 2, …]."""
    uses, first = list(value.uses()), next(iter(graph), None)
    op = Builder(graph, f"{PAIR}/{value.name}", before=first)
    value.shape = ir.Shape(["N", 2, *list(value.shape or ())[1:]])
    each = op.Reshape(value, op.Concat([-1], op.Shape(value, start=2), axis=0))
    each.dtype = value.dtype
    for node, place in uses:
        node.replace_input_with(place, each)
