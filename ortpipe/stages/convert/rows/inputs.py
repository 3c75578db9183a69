"""A file's inputs: those that hold the data, rows first; the others become constants of the graph."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError, nearest
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.operators import having
from ortpipe.graph.core.reach import uses_behind
from ortpipe.graph.core.selection import some
from ortpipe.graph.pictures.draw import type_of

Axes = int | Mapping[str, int] | None
STATIC = having("sized")  # with static sizes their gradients use constant matrices
SAME_ENTRIES, INDEXED = having("moves", "view"), having("indexed")
MOST_AXES = 256  # combinations of axes that are tried
ROWS_NAMES = ("batch", "batch_size", "batchsize", "batch_dim")  # exporters' names for the axis of rows


def set_shapes(graph: ir.Graph, shapes: Mapping[str, Sequence[int | None]]) -> None:
    """Set sizes from the config where the file leaves an input's sizes free, in place."""
    inputs = {str(v.name): v for v in query.data_inputs(graph)}
    for name, sizes in shapes.items():
        value = _input(inputs, name, f"shape.{name}")
        declared = list(value.shape) if value.shape is not None else [None] * len(sizes)
        if value.shape is not None and not _agree(query.sizes(value) or [], sizes):
            raise ConvertError(
                "{key} must have one entry per dimension of the input, and agree with the sizes that the file fixes.",
                key=f"shape.{name}",
                got=f"{list(sizes)} for an input of shape {type_of(value)}",
                fix="Write null for the rows and for sizes that the file fixes.",
            )
        value.shape = ir.Shape([d if s is None else s for s, d in zip(sizes, declared, strict=True)])


def _agree(dims: Sequence[int | None], sizes: Sequence[int | None]) -> bool:
    return len(dims) == len(sizes) and all(d == n or None in (d, n) for d, n in zip(dims, sizes, strict=True))


def drop_unread(graph: ir.Graph, names: Collection[str]) -> list[str]:
    """Remove the inputs that no node reads and the data lack, in place; return their names."""
    unread = [v for v in query.data_inputs(graph) if not v.uses() and not v.is_graph_output() and v.name not in names]
    graph.inputs[:] = [v for v in graph.inputs if v not in unread]
    return [str(v.name) for v in unread]


def fix(graph: ir.Graph, values: Mapping[str, Any]) -> None:
    """Replace inputs by constant values, by name: one number for all places, or all entries; in place.

    The data inputs have their rows first.
    """
    inputs = {str(v.name): v for v in graph.inputs}
    data = [v for v in query.data_inputs(graph) if v.name not in values]
    rows = {str(d.value) for v in data for d in list(v.shape or ())[:1] if isinstance(d, ir.SymbolicDim)}
    arrays = {name: _fixed_value(_input(inputs, name, f"fixed.{name}"), value, rows) for name, value in values.items()}
    if values and not data:
        rule = "At least one input must hold the data."
        raise ConvertError(rule, got=f"values for all: {', '.join(values)}", key="fixed", fix="Leave one out of {key}.")
    op = Builder(graph, "fixed", before=graph[0])
    for name, array in arrays.items():
        constant, dims = op.const(array), query.sizes(inputs[name]) or []
        if None in dims:
            count = op.Gather(op.Shape(data[0]), [0])
            constant = op.Expand(constant, op.Concat(*(count if d is None else [d] for d in dims), axis=0))
        inputs[name].replace_all_uses_with(constant)
        graph.initializers.pop(name, None)
    graph.inputs[:] = [v for v in graph.inputs if v.name not in arrays]


def check_data_inputs(graph: ir.Graph, data_names: Collection[str] | None) -> None:
    """Reject an input that holds no data and has no value in the config; values are never guessed.

    `data_names` are the names of the data's arrays, where known; a single array fits a single input under any name.
    """
    inputs = query.data_inputs(graph)
    scalars = [v for v in inputs if v.shape is not None and v.shape.rank() == 0]
    missing = [v for v in inputs if v.name not in data_names] if data_names is not None else scalars
    if not missing or (not scalars and data_names is not None and len(inputs) == len(data_names) == 1):
        return
    _check_independent_rows(graph, missing)
    if len(missing) == len(inputs):  # no names match: take the input that looks most like rows as the data's
        missing.remove(min(missing, key=lambda v: (v in scalars, (query.sizes(v) or [None])[0] is not None)))
    data_text = "" if data_names is None else f"; the data hold {', '.join(sorted(data_names))}"
    example = ", ".join(f"{v.name}: {'false' if v.dtype == ir.DataType.BOOL else 0}" for v in missing)
    lacks_token_types = "input_ids" in (data_names or ()) and any(v.name == "token_type_ids" for v in missing)
    fix = "Add token_type_ids to {@data.tokens.inputs}, or set " if lacks_token_types else "Set "
    raise ConvertError(
        "Every input of a model must be in the data, or have a constant value in {key}.",
        key="fixed",
        got=f"inputs {listed(inputs)}{data_text}",
        fix=f"{fix}{{key}}={{{example}}} (a number for all places, or a list of all entries) for inputs that are no "
        "data, such as states, flags and sampling rates; for data, give arrays under the inputs' names."
        if missing
        else f"Give the data's array the name {inputs[0].name}; arrays beside it are labels ({{@data.source.label}}, "
        "{@data.source.heads}), or are left out of the data.",
    )


def fixed_batch(graph: ir.Graph) -> int | None:
    """Return the batch size of the data inputs, which have their rows first; None if it is free."""
    inputs = query.data_inputs(graph)
    sizes = {v.name: dims[0] for v in inputs if (dims := query.sizes(v))}
    if len({*sizes.values()}) < 2:
        return next(iter(sizes.values()), None)
    _check_independent_rows(graph, inputs)
    first = next(name for name, size in sizes.items() if size is not None)
    raise ConvertError(
        "The first dimension of every data input must be the rows.",
        got=f"inputs {listed(inputs)}",
        fix=f"Give inputs that are no data a value ({{at}}fixed={{{first}: 0}}), or name the axis of rows if it "
        f"is another ({{at}}batch_axis={{{first}: 1}}).",
    )


def _check_independent_rows(graph: ir.Graph, inputs: Sequence[ir.Value]) -> None:
    """Reject a graph network: one of these inputs picks rows of another one."""
    for value in (v for v in inputs if v.dtype in (ir.DataType.INT32, ir.DataType.INT64) and v.shape):
        for node, place in uses_behind(value, SAME_ENTRIES):
            picks = place == 1 and node.op_type in INDEXED and node.attributes.get_int("axis", 0) == 0
            rows = query.ancestors([node.inputs[0]]) if picks and node.inputs[0] is not None else set()
            if any(v in rows for v in query.data_inputs(graph) if v is not value):
                raise ConvertError(
                    "Graph networks are not supported: every input must have one entry per row of the data, and "
                    "rows must not depend on each other.",
                    got=f"input {value.name!r}, by which {query.called(node)} picks rows of another input",
                    fix="Train the layers behind those of the graph alone, on what these give.",
                )


def listed(values: Sequence[ir.Value]) -> str:
    """Return names and types for a message."""
    return ", ".join(f"{v.name} {type_of(v)}" for v in values)


def axis_of(value: ir.Value, axes: Axes) -> int:
    """Return the axis of rows of an input or output: the config's, else the only one with such a name, else 0."""
    dims = list(value.shape or ())
    if isinstance(axes, int):
        axis = axes if len(dims) != 1 else 0
    elif axes and value.name in axes:
        axis = axes[str(value.name)]
    else:
        rows_axes = [i for i, d in enumerate(dims) if isinstance(d, ir.SymbolicDim) and _is_rows(d.value)]
        axis = rows_axes[0] if len(rows_axes) == 1 else 0
    if axis and value.shape is not None and not 0 <= axis < len(dims):
        rule, actual = "{key} must be an axis.", f"{axis} for {value.name!r} of shape {type_of(value)}"
        raise ConvertError(rule, key="batch_axis", got=actual, fix=f"Choose one of 0 to {len(dims) - 1}.")
    return axis


def check_axes(graph: ir.Graph, axes: Axes) -> None:
    """Reject axes of rows by names that are no inputs or outputs."""
    values = {str(v.name): v for v in (*graph.inputs, *graph.outputs)}
    for name in axes if isinstance(axes, Mapping) else ():
        _input(values, name, "batch_axis", "by names of inputs or outputs")


def axes_of_rows(inputs: Sequence[ir.Value], axes: Axes, rows: Mapping[str, np.ndarray]) -> list[dict[str, int]]:
    """Return candidates for the axes of rows, by input: the likeliest, then others whose sizes are those of the data.

    Axes of the config have no others unless the data contradict them.
    """
    rows = {str(v.name): a for v in inputs for a in rows.values()} if len(inputs) == len(rows) == 1 else rows
    likeliest = {str(v.name): axis_of(v, axes) for v in inputs}
    sizes = {str(v.name): query.sizes(v) or [] for v in inputs}

    def fits(name: str, axis: int) -> bool:
        return _agree(sizes[name][:axis] + sizes[name][axis + 1 :], rows[name].shape[1:])

    def agree(axis: Mapping[str, int]) -> bool:
        return len({(d[axis[n]] if d else None) for n, d in sizes.items()}) < 2

    if not sizes or not sizes.keys() <= rows.keys():
        return [likeliest]
    is_fitting = all(fits(*item) for item in likeliest.items())
    if axes is not None and is_fitting:
        return [likeliest]
    named, is_possible = axes if isinstance(axes, Mapping) else {}, is_fitting and agree(likeliest)
    by_input = [[named[n]] if n in named else range(max(len(dims), 1)) for n, dims in sizes.items()]
    fitting = [
        [(i, dims[i] if dims else None) for i in each if fits(n, i)]
        for (n, dims), each in zip(sizes.items(), by_input, strict=True)
    ]
    counts = [None] if is_possible else dict.fromkeys(count for _, count in fitting[0])
    each = (
        dict(zip(sizes, chosen, strict=True))
        for count in counts
        for chosen in itertools.product(*([i for i, size in axes if size == count] for axes in fitting))
    )
    others = list(itertools.islice((axis for axis in each if axis != likeliest), MOST_AXES))
    return [likeliest, *others] if agree(likeliest) else [*others, likeliest]


def moved(axes: Mapping[str, int]) -> list[str]:
    """Return a note of the inputs or outputs whose rows are not on the first axis."""
    others = [f"{name} has its rows on axis {axis}" for name, axis in axes.items() if axis]
    return [f"{some(others)}: moved to the first (convert.source.batch_axis)"] if others else []


def turn(graph: ir.Graph, value: ir.Value, axis: int | None) -> None:
    """Move the axis of rows of an input or output first, in place; None: an output has none and gets one."""
    if axis == 0:
        return
    dims, name = list(value.shape or ()), value.name
    shape = ir.Shape([1, *dims] if axis is None else [dims[axis], *dims[:axis], *dims[axis + 1 :]])
    if value.producer() is None and axis is not None:
        op, uses = Builder(graph, "rows", before=graph[0]), list(value.uses())
        layout = op.Transpose(value, perm=[*range(1, axis + 1), 0, *range(axis + 1, len(dims))])
        for node, place in uses:
            node.replace_input_with(place, layout)
        layout.type, layout.shape, value.shape = value.type, value.shape, shape
        return
    value.name, op = f"{name}/turned", Builder(graph, "rows")
    first = [axis, *(a for a in range(len(dims)) if a != axis)]
    turned = op.Unsqueeze(value, [0]) if axis is None else op.Transpose(value, perm=first)
    turned.name, turned.type, turned.shape = name, value.type, shape
    graph.outputs[graph.outputs.index(value)] = turned


def _is_rows(name: str | None) -> bool:
    return name is not None and name.lower() in ROWS_NAMES


def _input(values: Mapping[str, ir.Value], name: str, key: str, what: str = "an input") -> ir.Value:
    if name not in values:
        raise ConvertError(f"{{key}} must be {what} of the model.", key=key, got=repr(name), fix=nearest(name, values))
    return values[name]


def _fixed_value(value: ir.Value, entries: Any, rows: Collection[str]) -> np.ndarray:
    """Return the value of an input from the config, of size 1 along its rows, or everywhere if it is one number."""
    name, dtype, dims, key = str(value.name), value.dtype, query.sizes(value), f"fixed.{value.name}"
    free_dims = [d.value for d in value.shape or () if not isinstance(d, int)]
    are_rows = len(free_dims) < 2 or all(d in rows or _is_rows(d) for d in free_dims)
    if dims is None or dtype is None or not are_rows:
        raise ConvertError(
            "An input with a constant value must have known sizes; only that of the rows may be free.",
            key=key,
            got=f"{name} {type_of(value)}",
            fix=f"Set {{at}}shape.{name} to its sizes, with null for the rows.",
        )
    array, is_text = np.array(entries), dtype == ir.DataType.STRING
    kind = np.dtype(object if is_text else dtype.numpy())
    fits = kind.kind not in "iub" or array.dtype.kind in "iub" or (array.dtype.kind == "f" and (array % 1 == 0).all())
    if (array.dtype.kind in "US") != is_text or array.dtype == object or not fits:
        rule, actual = "{key} must be of the input's type.", f"{entries!r:.100} for {name} {type_of(value)}"
        raise ConvertError(rule, key=key, got=actual, fix="Give a number, or a list of all entries.")
    sizes = [1 if d is None else d for d in dims]
    if array.size not in (1, math.prod(sizes)):
        rule, actual = "{key} must be one number, or all entries.", f"{array.size} entries for {name} {type_of(value)}"
        raise ConvertError(rule, key=key, got=actual, fix=f"Give 1 or {math.prod(sizes)}.")
    array = array.astype(str if is_text else kind)
    return np.full(sizes, array.ravel()[0]) if array.size == 1 else array.reshape(sizes)


def needs_sizes(graph: ir.Graph) -> bool:
    """Return whether a node with free sizes would have a simpler gradient with static ones."""
    for node in (node for node in graph.all_nodes() if not node.domain):
        has_free_sizes = None in (query.sizes(next(iter(node.inputs), None)) or [])[2:]
        reads_sizes = node.op_type in STATIC or node.attributes.get_string("auto_pad", "").startswith("SAME")
        if node.op_type == "If" or (has_free_sizes and reads_sizes):  # exporters write an If where a size is unknown
            return True
    return False


def sizes_of_rows(graph: ir.Graph, rows: Mapping[str, np.ndarray]) -> dict[str, list[int | None]]:
    """Return the sizes of the rows, by input, for inputs whose sizes are free."""
    inputs, sizes_by_input = query.data_inputs(graph), dict[str, list[int | None]]()
    for value in inputs:
        array = next(iter(rows.values())) if len(inputs) == len(rows) == 1 else rows.get(str(value.name))
        dims = (query.sizes(value) or [])[1:]
        if array is not None and _agree(dims, array.shape[1:]) and None in dims:
            sizes_by_input[str(value.name)] = [None, *array.shape[1:]]
    return sizes_by_input
