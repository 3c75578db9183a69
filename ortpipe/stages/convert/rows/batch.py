"""How a model takes rows, as runs show: any number or a few at a time, and which axis of an output has them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Facts
from ortpipe.data.feeds import feed_inputs
from ortpipe.data.rows import Data
from ortpipe.errors import ConvertError, ModelError, OrtpipeError
from ortpipe.graph.core import query
from ortpipe.graph.core.apart import same_graph
from ortpipe.graph.core.builder import Builder, Names, used_names
from ortpipe.graph.core.check import proto_apart
from ortpipe.graph.core.protos import Weights
from ortpipe.graph.forms.modes import to_inference
from ortpipe.graph.importing.batch import name_batch
from ortpipe.runtime.session import Session
from ortpipe.stages.convert.prediction.heads import Head, read_head, replay
from ortpipe.stages.convert.rows.free_batch import free_batch_size
from ortpipe.stages.convert.rows.inputs import Axes, axis_of, fixed_batch, moved, turn

Inputs = Mapping[str, np.ndarray]

RELATIVE = {"float64": 1e-6, "float32": 1e-3}  # tolerance of results, by type; others 2e-2
INCONCLUSIVE = "is the same for all rows that were tried, which proves nothing"
SAME = (None, INCONCLUSIVE)
UNKNOWN_SIZE = 16  # size of a free dimension in random rows
TRIED_ROWS = 3  # rows for a look at a model that takes any number


class BatchResults(NamedTuple):
    """An output of batches of rows, one after another."""

    results: Sequence[np.ndarray]
    size: int | None  # rows of a batch; None: all
    total: int  # rows; copies of the last one follow
    copies: int = 1  # of each row

    def joined(self, axis: int) -> np.ndarray:
        """Return the rows, which have this axis, first; results of one row that lack the axis get one."""
        if self.size is None and self.results[0].ndim == 0:  # one number for all rows, such as a loss
            return self.results[0]
        if self.size == 1 and self.results[0].shape[axis : axis + 1] != (1,):
            return np.stack(self.results)
        return np.concatenate([np.moveaxis(r, axis, 0) for r in self.results])[: self.total : self.copies]

    def axis(self, result: np.ndarray, likeliest: int) -> tuple[int, str | None]:
        """Return the axis along which a result of all rows together is the same, or the likeliest; the difference."""
        axes = [a for a in range(result.ndim) if result.shape[a] == self.total // self.copies]
        axes.sort(key=lambda a: a != likeliest)
        differences = {axis: _difference(np.moveaxis(result, axis, 0), self.joined(axis)) for axis in axes}
        best = min(axes, key=lambda a: (*SAME, differences[a]).index(differences[a]), default=likeliest)
        return best, differences.get(best, f"has shape {list(result.shape)}, without an axis of the rows")


@dataclass
class Original:
    """The model of a file as it is, to compare the converted one with. Its inputs are the data's, rows first."""

    model: onnx.ModelProto  # in inference mode
    weights: Weights  # values of the initializers that are stored outside of `model`
    data: Data | None
    named: Axes = None  # the outputs' axes of rows by the config or their names, the likeliest ones
    fused: bool = True  # fusions of a quantized model round otherwise than the file
    size: int | None = None  # the number of rows that it takes at a time; None: any
    axes: Mapping[str, int] = field(default_factory=dict)  # output → its axis of rows, where not 0

    @classmethod
    def of(
        cls, model: ir.Model, data: Data | None, named: Axes = None, read: tuple[onnx.ModelProto, Weights] | None = None
    ) -> Original:
        """Return a copy of a model; `read` is the same one with its weights, as read from a file."""
        inference = model.clone()
        changed = to_inference(inference)
        return cls(*(proto_apart(inference) if changed or read is None else read), data, named)

    @cached_property
    def session(self) -> Session:
        """The loaded model."""
        return Session(self.model, weights=self.weights, fused=self.fused)

    def session_of(self, model: onnx.ModelProto, weights: Weights) -> Session | None:
        """Return the loaded model if the given one has the same nodes and weights; else free the memory of its own."""
        if self.size is None and self.fused and same_graph((self.model, self.weights), (model, weights)):
            return self.session
        vars(self).pop("session", None)
        return None

    def run(self, inputs: Inputs, output: str) -> np.ndarray:
        """Return an output, its rows first."""
        return self.batches(inputs, [output], self.size)[0].joined(self.axes.get(output, 0))

    def batches(self, inputs: Inputs, outputs: Sequence[str], size: int | None) -> list[BatchResults]:
        """Return the outputs of each batch of rows; copies of the last row fill up the last batch."""
        count = len(next(iter(inputs.values())))
        places = [np.minimum(np.arange(i, i + (size or count)), count - 1) for i in range(0, count, size or count)]
        results = [self.session.run({name: a[place] for name, a in inputs.items()}, outputs) for place in places]
        return [BatchResults([result[i] for result in results], size, count) for i in range(len(outputs))]

    def rows(self, count: int) -> Inputs:
        """Return real or random rows; raise ConvertError if there are none, and a type cannot be sampled."""
        inputs = [v for v in self.model.graph.input if v.name not in {t.name for t in self.model.graph.initializer}]
        if self.data is not None:
            facts = Facts("regression", tuple(v.name for v in inputs), (), "", ())
            rows = feed_inputs(self.model, facts, self.data.train.head(count))
            return {name: array[np.arange(count) % len(array)] for name, array in rows.items()}
        rng, sampled = np.random.default_rng(0), dict[str, np.ndarray]()
        for value in inputs:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            dims = [count, *(d.dim_value or UNKNOWN_SIZE for d in value.type.tensor_type.shape.dim[1:])]
            if dtype.kind not in "fiub":
                got = f"there are no rows to verify it on, and {dtype} cannot be sampled"
                raise ConvertError("A model must be tried on rows.", got=got, fix="Give rows.")
            high = 256 if dtype == np.uint8 else 2
            array = rng.normal(size=dims) if dtype.kind == "f" else rng.integers(0, high, dims)
            sampled[value.name] = array.astype(dtype)
        return sampled

    def has_rows_first(self, size: int | None) -> bool:
        """Return whether the first axis of the inputs is that of rows: together, they give the same as each alone."""
        copies = size or 1
        try:
            rows, outputs = self.rows(size or TRIED_ROWS), self.session.outputs
            together = self.session.run(rows, outputs)
            alone = self.batches({name: np.repeat(a, copies, axis=0) for name, a in rows.items()}, outputs, copies)
        except OrtpipeError:
            return False
        return all(b._replace(copies=copies).axis(y, 0)[1] in SAME for y, b in zip(together, alone, strict=True))


def batch_size(graph: ir.Graph, original: Original, batch: Literal["auto", "free", "rows"]) -> int | None:
    """Return the number of rows that a model takes at a time, by its inputs or by runs; None: any."""
    size = fixed_batch(graph)
    for number in (None, 1) if size is None and original.data is not None else ():
        with contextlib.suppress(ModelError):  # if both fail, the comparison of predictions reports the reason
            original.batches(original.rows(TRIED_ROWS), original.session.outputs, number)
            size = number
            break
    size = 1 if size is None and batch == "rows" else size
    for value in query.data_inputs(graph) if size is not None else ():
        value.shape = ir.Shape([size, *list(value.shape or ())[1:]])
    return size


def take_rows(
    model: ir.Model, original: Original, batch: Literal["auto", "free", "rows"], required: Sequence[str]
) -> tuple[ir.Model, dict[str, Head], list[str]]:
    """Return the model for any number of rows, first in the required outputs too; the heads of these; and notes.

    A model of a batch size is rewritten if that gives the same as one batch after another; else it runs so. The axes of
    rows are set in `original`.
    """
    size, notes, why = original.size, list[str](), "convert.source.batch=rows" if batch == "rows" else None
    axes: dict[str, int | None] = {str(v.name): axis_of(v, original.named) for v in model.graph.outputs}
    if size is None and original.data is not None:
        with contextlib.suppress(ConvertError, ModelError):  # it takes several rows, but not one
            axes |= {name: axis for name, (axis, _) in _seen(model.graph, original, required, TRIED_ROWS).items()}
    if size is not None and why is None:
        try:
            model, axes = _freed(model, original, required)
        except OrtpipeError as error:
            why = str(error.got)[:200]
    if why is not None:
        if batch == "free":
            raise ConvertError(
                "With {key}=free, all rows at once must give the same results as batch by batch.",
                key="batch",
                got=why,
                fix="Set {key}=auto: the model then runs batch by batch.",
            )
        with contextlib.suppress(ConvertError):  # there are no rows
            for name, (axis, difference) in _seen(model.graph, original, list(axes), size or 1).items():
                axes[name] = None if size == 1 and difference not in SAME else axis
    if size is not None:
        runs = f" and runs batch by batch, which is slower ({why})"
        how = runs if why else "; the model now takes any number, with the same results"
        notes.append(f"the file takes {'1 row' if size == 1 else f'{size} rows'} at a time{how}")
    for output in list(model.graph.outputs):
        turn(model.graph, output, axes[str(output.name)])
    original.axes = {name: axis for name, axis in axes.items() if axis}
    notes += moved(original.axes)
    heads = {name: read_head(model.graph, query.value(model.graph, name)) for name in required}
    return model, _in_batches(model, size, heads) if size is not None and why else heads, notes


def _freed(model: ir.Model, original: Original, required: Sequence[str]) -> tuple[ir.Model, dict[str, int | None]]:
    """Return the model for any number of rows, and its outputs' axes of rows; raise if it differs from the original.

    Outputs that differ, or have no rows, are left out unless they are required.
    """
    assert original.size is not None
    free_model, axes = free_batch_size(model, original.size), dict[str, int | None]()
    graph, inference = free_model.graph, free_model.clone()
    to_inference(inference)
    names = [str(v.name) for v in graph.outputs]
    for name, (axis, difference) in _seen(graph, original, names, 2 * original.size + 1, Session(inference)).items():
        if name in required and difference is not None:
            raise ConvertError("Rows together must give the results of batches.", got=f"{name!r} {difference}")
        if difference in SAME:
            axes[name] = axis
    graph.outputs[:] = [v for v in graph.outputs if v.name in axes]
    return free_model, axes


def _seen(
    graph: ir.Graph, original: Original, outputs: Sequence[str], count: int, session: Session | None = None
) -> dict[str, tuple[int, str | None]]:
    """Correct the declared sizes of outputs by a run of rows together, in place.

    Returns:
        For each output, its axis of rows, and how it differs there from the original's results of batches.
    """
    rows, seen = original.rows(count), dict[str, tuple[int, str | None]]()
    together = (session or original.session).run(rows, outputs)
    sizes = [d for v in query.data_inputs(graph) for d in list(v.shape or ())[1:]]
    static = all(isinstance(d, int) for d in sizes) or (session is None and original.size is not None)  # as in a loop
    one_by_one = original.batches(rows, outputs, original.size or 1)
    for name, result, batches in zip(outputs, together, one_by_one, strict=True):
        output = query.value(graph, name)
        if len(output.shape or ()) != result.ndim:
            output.shape = ir.Shape([None] * result.ndim)
        axis, difference = seen[name] = batches.axis(result, axis_of(output, original.named))
        dims = [n if static or isinstance(d, int) else d for d, n in zip(output.shape or (), result.shape, strict=True)]
        has_rows = difference in SAME or (original.size is None and result.shape[axis : axis + 1] == (count,))
        output.shape = ir.Shape(["N" if i == axis and has_rows else d for i, d in enumerate(dims)])
    return seen


def _in_batches(model: ir.Model, size: int, heads: Mapping[str, Head]) -> dict[str, Head]:
    """Put a graph into a loop over batches of rows, in place, but for last activations; return the heads behind it."""
    graph, last, ends = model.graph, dict[str, tuple[ir.Node, ir.Value]](), list[ir.Value]()
    for name, head in heads.items():
        output = query.value(graph, name)
        node, logits = output.producer(), head.logits
        is_last = node is not None and node.op_type in ("Sigmoid", "Softmax") and node.inputs[0] is logits
        if is_last and node and logits and not logits.is_graph_output():
            last[name] = node, logits
            output.name, logits.shape = f"{name}/batch", logits.shape or output.shape
            graph.outputs[graph.outputs.index(output)] = output = logits
        ends.append(output)
    extra = [v for v in graph.outputs if v.shape and v.shape[0] in (size, "N")]
    for value in (v for node in graph for v in node.outputs if v.shape is not None):
        value.shape = ir.Shape([size if d == "N" else d for d in value.shape or ()])  # in the loop, N means all rows
    stacked, op = scan_batches(model, size, list(dict.fromkeys([*ends, *extra]))), Builder(graph, "rows")
    for name, (node, logits) in last.items():
        value = replay(op, node, stacked[logits])
        value.name, value.type, value.shape = name, logits.type, stacked[logits].shape
        graph.outputs[graph.outputs.index(stacked[logits])] = value
    name_batch(model)
    return {
        name: replace(head, logits=stacked.get(head.logits)) if head.logits is not None else head
        for name, head in heads.items()
    }


def _difference(result: np.ndarray, expected: np.ndarray) -> str | None:
    """Return how a result of all rows differs from that of batches; None if it does not."""
    if result.shape != expected.shape:
        return f"has shape {list(result.shape)} of all rows together, {list(expected.shape)} one after another"
    if expected.dtype.kind not in "fiub":
        return None if (result == expected).all() else "differs"
    actual, reference = result.astype(np.float64), expected.astype(np.float64)
    largest = np.abs(reference).max(initial=0)
    relative = RELATIVE.get(expected.dtype.name, 2e-2)
    tolerance = relative * np.abs(reference) + relative / 100 * largest
    if not (np.abs(actual - reference) <= tolerance).all():
        return f"differs by {np.abs(actual - reference).max():.2g} from what rows give one after another"
    return INCONCLUSIVE if (np.abs(reference - reference[:1]) <= tolerance).all() else None


def scan_batches(model: ir.Model, size: int, outputs: Sequence[ir.Value]) -> dict[ir.Value, ir.Value]:
    """Put a whole graph into the body of a Scan over batches of `size` rows, in place.

    Copies of the last row fill up the last batch. Initializers stay outside, where training finds them.

    Args:
        model: its inputs have `size` rows.
        size: the batch size.
        outputs: values to compute for all rows, which they have first.

    Returns:
        The values for all rows, by value; the former outputs among them become the model's outputs.
    """
    graph, names = model.graph, Names(used_names(model.graph))
    data, former_outputs, nodes = query.data_inputs(graph), [v for v in graph.outputs if v in outputs], list(graph)
    graph.outputs.clear()
    graph.remove(nodes)
    body = ir.Graph([], [], nodes=nodes, opset_imports=graph.opset_imports, name="batch")
    op, front = Builder(graph, "rows", names=names), Builder(body, "batch", before=nodes[0], names=names)
    count, batches = op.Gather(op.Shape(data[0]), [0]), []
    for value in data:
        dims, uses = list(value.shape or ())[1:], [use for use in value.uses() if use[0].graph is not graph]
        value.shape = ir.Shape(["N", *dims])
        batch = front.placeholder(f"{value.name}/batch", value, ir.Shape([size, *dims]))
        body.inputs.append(batch)
        for node, place in uses:
            node.replace_input_with(place, batch)
        batches.append(op.Unsqueeze(value, [1]) if size == 1 else _batches(op, value, count, size))
    names_by_output, stacked = {v: str(v.name) for v in outputs}, dict[ir.Value, ir.Value]()
    for value in outputs:
        value.name = names.fresh(f"{value.name}/batch")
        body.outputs.append(value)
    results = op.Scan(*batches, body=body, num_scan_inputs=len(batches), outputs=len(outputs))
    for value, result in zip(outputs, [results] if isinstance(results, ir.Value) else results, strict=True):
        dims = list(value.shape or ())[1:]
        result.type, result.shape = value.type, ir.Shape([None, size, *dims])  # [batches, size, …]
        rows = stacked[value] = op.Squeeze(result, [1]) if size == 1 else _rows(op, result, count, dims)
        rows.name, rows.type, rows.shape = names_by_output[value], value.type, ir.Shape(["N", *dims])
    graph.outputs.extend(stacked[v] for v in former_outputs)
    return stacked


def _batches(op: Builder, value: ir.Value, count: ir.Value, size: int) -> ir.Value:
    """Return rows [N, …] as batches [⌈N / size⌉, size, …]."""
    padded = op.Squeeze(op.Mul(op.Div(op.Add(count, [size - 1]), [size]), [size]))
    places = op.Min(op.Range(0, padded, 1), op.Sub(count, [1]))
    return op.Gather(value, op.Reshape(places, [-1, size]))


def _rows(op: Builder, batches: ir.Value, count: ir.Value, dims: Sequence[object]) -> ir.Value:
    """Return batches as rows, without the copies that fill up the last batch."""
    sizes = op.const([-1, *dims]) if all(isinstance(d, int) for d in dims) else None  # Slice hides the sizes
    target = sizes or op.Concat([-1], op.Shape(batches, start=2), axis=0)
    rows = op.Slice(op.Reshape(batches, target), [0], count, [0])
    return rows if sizes is None or not dims else op.Reshape(rows, sizes)
