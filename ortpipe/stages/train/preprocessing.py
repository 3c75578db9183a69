"""A model's preprocessing: the nodes that depend row by row on data alone. It runs once; training uses its results."""

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Arrays, Artifact, Facts
from ortpipe.data.feeds import Feed
from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import Rows
from ortpipe.errors import TrainError
from ortpipe.graph.core import query
from ortpipe.graph.core.edit import keep_outputs
from ortpipe.graph.core.operators import is_random
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session

BLOCK = 1024  # rows per run, always the same number, so that a row's result does not depend on the others
SOME, FEWER = 64, 37  # rows for the test which nodes work row by row
# bytes of a row, and times its operands': each step makes the values that are wider than both
WIDE, WIDER = 1024, 8


def without_preprocessing(
    artifact: Artifact, rows: RowSet, feed: Feed, runtime: RuntimeConfig | None
) -> tuple[Artifact, Feed]:
    """Return the gradient model without its preprocessing, and a function from rows to the inputs of that model.

    Preprocessing has every node that depends only on data and constants, works row by row, is not random, and whose
    result is not much wider than its operands. `rows` are those of training; `feed` returns the inputs of the model.

    Raises:
        TrainError: text reaches a node that is not part of the preprocessing.
    """
    facts = artifact.facts
    some_rows = {name: np.resize(array, (SOME, *array.shape[1:])) for name, array in feed(rows.head(SOME)).items()}
    results = _preprocessed(artifact, some_rows, runtime)
    rest, handed = _rest(artifact, results)
    names = tuple(str(v.name) for v in rest.graph.inputs if v.name in facts.inputs or v.name in handed)
    _reject_text(rest.graph, names)
    preprocessing = artifact.ir_model(handed)
    session = Session(preprocessing, runtime)
    read = [str(value.name) for value in preprocessing.graph.inputs]

    def feed_rest(rows: Rows) -> dict[str, np.ndarray]:
        arrays = feed(rows)
        results = _in_blocks(session, {name: arrays[name] for name in read})
        return {name: a for name, a in arrays.items() if name not in facts.inputs or name in names} | results

    return Artifact(rest, dataclasses.replace(facts, inputs=names)), feed_rest


def _rest(artifact: Artifact, results: Arrays) -> tuple[ir.Model, list[str]]:
    """Return the model that reads results of preprocessing as inputs, and their names."""
    rest = artifact.ir_model()
    values = query.values(rest.graph)
    handed = [name for name in results if _is_read_behind(values[name], results)]
    for name in handed:
        old, array = values[name], results[name]
        new = ir.val(name, old.dtype, ["N", *array.shape[1:]])
        old.name = f"{name}/front"
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        rest.graph.inputs.append(new)
    keep_outputs(rest, [str(value.name) for value in rest.graph.outputs])
    return rest, handed


def _is_read_behind(value: ir.Value, results: Collection[str]) -> bool:
    return value.is_graph_output() or any(use.node.outputs[0].name not in results for use in value.uses())


def _preprocessed(artifact: Artifact, some_rows: Arrays, runtime: RuntimeConfig | None) -> dict[str, np.ndarray]:
    """Return the results of the preprocessing nodes for some rows, by name."""
    model = artifact.ir_model()
    ahead, available = _independent_of_parameters(model.graph, artifact.facts)
    outputs = [y for node in ahead for y in _typed(node)]
    model.graph.outputs[:] = outputs
    keep_outputs(model, names := [str(y.name) for y in outputs])
    session = Session(model, runtime)
    read_names = [str(value.name) for value in model.graph.inputs]
    more, fewer = (
        dict(zip(names, session.run({n: some_rows[n][-count:] for n in read_names}, names), strict=True))
        for count in (SOME, FEWER)
    )
    results = dict[str, np.ndarray]()
    for node in ahead:
        operands = [str(x.name) for x in node.inputs if x is not None]
        written = [str(y.name) for y in _typed(node)]
        rowwise = all(_same_rows(more[name], fewer[name]) for name in written)
        if available.issuperset(operands) and rowwise and not _is_wide(more, written, operands, some_rows):
            available.update(written)
            results |= {name: more[name] for name in written}
    return results


def _independent_of_parameters(graph: ir.Graph, facts: Facts) -> tuple[list[ir.Node], set[str]]:
    """Return the nodes that depend only on data and constants, and the names of data, constants and sizes."""
    trained = {*facts.gradients, *facts.statistics}
    data = {value for value in graph.inputs if value.name in facts.inputs}
    fixed = {value for name, value in graph.initializers.items() if name not in trained}
    sizes, ahead = set[ir.Value](), list[ir.Node]()  # sizes depend on the shapes of data alone
    for node in graph:
        read = [x for x in node.inputs if x is not None]
        if not read or query.subgraphs(node) or is_random(node) or node.attributes.get_int("training_mode", 0) == 1:
            fixed |= {*node.outputs} if node.op_type == "Constant" else set()
        elif all(x in fixed for x in read):
            fixed |= {*node.outputs}
        elif all(x in fixed or x in sizes for x in read) or (node.op_type in ("Shape", "Size") and read[0] in data):
            sizes |= {*node.outputs}
        elif all(x in fixed or x in sizes or x in data for x in read):
            data |= {*node.outputs}
            ahead.append(node)
    return ahead, {*map(str, facts.inputs), *(str(v.name) for v in (*fixed, *sizes))}


def _typed(node: ir.Node) -> list[ir.Value]:
    """Return a node's outputs, without untyped ones that onnxruntime's own operators add and that are unused."""
    return [y for y in node.outputs if y.name and y.type is not None]


def _same_rows(more: np.ndarray, fewer: np.ndarray) -> bool:
    """Return whether the last rows have the same results when they are computed without the others."""
    if not (more.ndim and fewer.ndim) or (len(more), len(fewer)) != (SOME, FEWER) or more.shape[1:] != fewer.shape[1:]:
        return False
    if more.dtype.kind == "f":
        return np.allclose(more[-FEWER:], fewer, rtol=1e-4, atol=1e-6, equal_nan=True)
    return bool((more[-FEWER:] == fewer).all())


def _is_wide(results: Arrays, outputs: list[str], read: list[str], some_rows: Arrays) -> bool:
    arrays = [
        results[name] if name in results else some_rows[name] for name in read if name in results or name in some_rows
    ]
    if any(array.dtype == object for array in arrays):
        return False
    size = sum(results[name].nbytes for name in outputs) / SOME
    return size > WIDE and size > WIDER * sum(array.nbytes for array in arrays) / SOME


def _in_blocks(session: Session, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run preprocessing on BLOCK rows at a time; the last block is padded with copies of the last row."""
    count = len(next(iter(arrays.values())))
    pieces = []
    for first in range(0, count, BLOCK):
        rows = np.minimum(np.arange(first, first + BLOCK), count - 1)
        pieces.append(session.run({name: array[rows] for name, array in arrays.items()}, session.outputs))
    joined = (np.concatenate(parts)[:count] for parts in zip(*pieces, strict=True))
    return dict(zip(session.outputs, joined, strict=True))


def _reject_text(graph: ir.Graph, inputs: tuple[str, ...]) -> None:
    """Raise if training would read text; name the first node that reads it."""
    for value in graph.inputs:
        if value.name in inputs and value.dtype == ir.DataType.STRING:
            node = next(iter(value.uses())).node
            raise TrainError(
                "Text must be converted to numbers row by row, before every trained parameter.",
                got=f"{value.name!r}, which {query.called(node)} reads after a trained parameter, or across rows",
                fix="Leave the column out ({@data.source.inputs}), or encode its words before the network.",
            )
