"""A file's inputs: those that hold the data, rows first; the others become constants of the graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.errors import ConvertError, nearest
from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.graph.show import type_of

Axes = int | Mapping[str, int] | None
STATIC = ("AveragePool", "LpPool", "Resize", "Upsample")  # with static sizes their gradients use constant matrices
ROWS_NAMES = ("batch", "batch_size", "batchsize", "batch_dim")  # exporters' names for the axis of rows


@dataclass(frozen=True)
class Fixed:
    """An input's constant value; `dims` are its sizes, None for the axis of rows."""

    dtype: ir.DataType
    dims: tuple[int | None, ...]
    value: np.ndarray  # of size 1 along the rows; or one number for all places

    def array(self, rows: int) -> np.ndarray:
        """Return the value for this many rows."""
        return np.array(np.broadcast_to(self.value, [rows if d is None else d for d in self.dims]))


def set_shapes(graph: ir.Graph, shapes: Mapping[str, Sequence[int | None]]) -> None:
    """Set sizes from the config where the file leaves an input's sizes free, in place."""
    inputs = {str(v.name): v for v in query.data_inputs(graph)}
    for name, sizes in shapes.items():
        value = _input(inputs, name, f"shape.{name}")
        declared = list(value.shape) if value.shape is not None else [None] * len(sizes)
        fits = len(declared) == len(sizes) and all(
            s is None or s == d or not isinstance(d, int) for s, d in zip(sizes, declared, strict=True)
        )
        if not fits:
            raise ConvertError(
                "{key} must have one entry per dimension of the input, and agree with the sizes that the file fixes.",
                key=f"shape.{name}",
                got=f"{list(sizes)} for an input of shape {type_of(value)}",
                fix="Write null for the rows and for sizes that the file fixes.",
            )
        value.shape = ir.Shape([d if s is None else s for s, d in zip(sizes, declared, strict=True)])


def drop_unread(graph: ir.Graph, names: Collection[str]) -> list[str]:
    """Remove the inputs that no node reads and the data lack, in place; return their names."""
    unread = [v for v in query.data_inputs(graph) if not v.uses() and not v.is_graph_output() and v.name not in names]
    graph.inputs[:] = [v for v in graph.inputs if v not in unread]
    return [str(v.name) for v in unread]


def fix(graph: ir.Graph, values: Mapping[str, Any], rows: Collection[str]) -> dict[str, Fixed]:
    """Replace inputs by the constant values of the config, in place.

    Args:
        graph: the graph.
        values: input → its value: one number for all places, or all entries.
        rows: names of the first dimension of the data inputs.
    """
    inputs = {str(v.name): v for v in graph.inputs}
    fixed = {name: _fixed_input(_input(inputs, name, f"fixed.{name}"), value, rows) for name, value in values.items()}
    data = [v for v in query.data_inputs(graph) if v.name not in fixed]
    if fixed and not data:
        rule = "At least one input must hold the data."
        raise ConvertError(rule, got=f"values for all: {', '.join(fixed)}", key="fixed", fix="Leave one out of {key}.")
    op = Builder(graph, "fixed", before=graph[0])
    for name, entry in fixed.items():
        value = inputs[name]
        constant = op.const(entry.array(1))
        if None in entry.dims:
            count = op.Gather(op.Shape(data[0]), op.const([0]))
            sizes = [count if d is None else op.const([d]) for d in entry.dims]
            constant = op.Expand(constant, op.Concat(*sizes, axis=0))
        value.replace_all_uses_with(constant)
        graph.initializers.pop(name, None)
    graph.inputs[:] = [v for v in graph.inputs if v.name not in fixed]
    return fixed


def check_data_inputs(graph: ir.Graph, data_names: Collection[str] | None) -> None:
    """Reject an input that holds no data and has no value in the config; values are never guessed.

    `data_names` are the names of the data's arrays, where known; a single array fits a single input under any name.
    """
    inputs = query.data_inputs(graph)
    scalars = [v for v in inputs if v.shape is not None and v.shape.rank() == 0]
    missing = [v for v in inputs if v.name not in data_names] if data_names is not None else scalars
    if not missing or (not scalars and data_names is not None and len(inputs) == len(data_names) == 1):
        return
    if len(missing) == len(inputs):  # no names match: take the input that looks most like rows as the data's
        missing.remove(min(missing, key=lambda v: (v in scalars, _has_fixed_rows(v))))
    data_text = "" if data_names is None else f"; the data hold {', '.join(sorted(data_names))}"
    example = ", ".join(f"{v.name}: {'false' if v.dtype == ir.DataType.BOOL else 0}" for v in missing)
    lacks_token_types = "input_ids" in (data_names or ()) and any(v.name == "token_type_ids" for v in missing)
    fix = "Add token_type_ids to data.tokens.inputs, or set " if lacks_token_types else "Set "
    raise ConvertError(
        "Every input of a model must be in the data, or have a constant value in {key}.",
        key="fixed",
        got=f"inputs {', '.join(f'{v.name} {type_of(v)}' for v in inputs)}{data_text}",
        fix=f"{fix}{{key}}={{{example}}} (a number for all places, or a list of all entries) for inputs that are no "
        "data, such as states, flags and sampling rates; for data, give arrays under the inputs' names."
        if missing
        else f"Give the data's array the name {inputs[0].name}; arrays beside it are labels (data.source.label, "
        "data.source.heads), or are left out of the data.",
    )


def axis_of(value: ir.Value, axes: Axes) -> int:
    """Return the axis of rows of an input or output: the config's, else the only one with such a name, else 0."""
    rank = value.shape.rank() if value.shape is not None else None
    if isinstance(axes, int):
        axis = axes if rank is None or rank > 1 else 0
    elif axes and value.name in axes:
        axis = axes[str(value.name)]
    else:
        rows_axes = [i for i, d in enumerate(value.shape or ()) if isinstance(d, ir.SymbolicDim) and _is_rows(d.value)]
        axis = rows_axes[0] if len(rows_axes) == 1 else 0
    if axis and rank is not None and not 0 <= axis < rank:
        rule, actual = "{key} must be an axis.", f"{axis} for {value.name!r} of shape {type_of(value)}"
        raise ConvertError(rule, key="batch_axis", got=actual, fix=f"Choose one of 0 to {rank - 1}.")
    return axis


def turn(graph: ir.Graph, axes: Axes, outputs: Collection[str] | None = None) -> dict[str, int]:
    """Move the axis of rows of inputs and outputs first, by a Transpose each, in place; return the former axes."""
    if isinstance(axes, Mapping):
        names = [str(v.name) for v in (*graph.inputs, *graph.outputs)]
        for name in axes:
            if name not in names:
                fix = nearest(name, names)
                raise ConvertError("{key} must be by names of inputs or outputs.", key="batch_axis", got=name, fix=fix)
    axis_by_name = dict[str, int]()
    for value in query.data_inputs(graph):
        if (axis := axis_of(value, axes)) == 0:
            continue
        dims = list(value.shape or ())
        perm = [*range(1, axis + 1), 0, *range(axis + 1, len(dims))]
        op, first = Builder(graph, "rows", before=graph[0]), value
        uses = list(value.uses())
        original_layout = op.Transpose(first, perm=perm)
        for node, place in uses:
            node.replace_input_with(place, original_layout)
        original_layout.type, original_layout.shape = value.type, value.shape
        value.shape = ir.Shape([dims[axis], *dims[:axis], *dims[axis + 1 :]])
        axis_by_name[str(value.name)] = axis
    op = Builder(graph, "rows")
    for i, value in enumerate(list(graph.outputs)):
        if (axis := axis_of(value, axes)) == 0 or value.shape is None:
            continue
        dims, name = list(value.shape), str(value.name)
        value.name = f"{name}/turned"
        new = op.Transpose(value, perm=[axis, *(a for a in range(len(dims)) if a != axis)])
        new.name, new.type = name, value.type
        new.shape = ir.Shape([dims[axis], *dims[:axis], *dims[axis + 1 :]])
        graph.outputs[i] = new
        axis_by_name[name] = axis
    return axis_by_name


def _is_rows(name: str | None) -> bool:
    return name is not None and name.lower() in ROWS_NAMES


def _has_fixed_rows(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.rank() > 0 and isinstance(value.shape[0], int)


def _input(inputs: Mapping[str, ir.Value], name: str, key: str) -> ir.Value:
    if name not in inputs:
        raise ConvertError("{key} must be an input of the model.", key=key, got=repr(name), fix=nearest(name, inputs))
    return inputs[name]


def _fixed_input(value: ir.Value, entries: Any, rows: Collection[str]) -> Fixed:
    name, shape, dtype = str(value.name), value.shape, value.dtype
    if shape is None or dtype is None:
        rule = "An input with a constant value must have a known shape."
        fix = f"Set {{at}}shape.{name} too."
        raise ConvertError(rule, key=f"fixed.{name}", got=f"{name!r} of unknown shape", fix=fix)
    free_dims = [d for d in shape if not isinstance(d, int)]
    rows_dims = [d for d in free_dims if d.value in rows or _is_rows(d.value)]
    if len(free_dims) > 1 and len(rows_dims) != len(free_dims):
        raise ConvertError(
            "An input with a constant value must have known sizes; only that of the rows may be free.",
            key=f"fixed.{name}",
            got=f"{name} {type_of(value)}",
            fix=f"Set {{at}}shape.{name} to its sizes, with null for the rows.",
        )
    dims = tuple(d if isinstance(d, int) else None for d in shape)
    kind = np.dtype(object if dtype == ir.DataType.STRING else dtype.numpy())
    array, is_text = np.array(entries), dtype == ir.DataType.STRING
    fits = kind.kind not in "iub" or array.dtype.kind in "iub" or (array.dtype.kind == "f" and (array % 1 == 0).all())
    if (array.dtype.kind in "US") != is_text or array.dtype == object or not fits:
        rule, actual = "{key} must be of the input's type.", f"{entries!r:.100} for {name} {type_of(value)}"
        raise ConvertError(rule, key=f"fixed.{name}", got=actual, fix="Give a number, or a list of all entries.")
    sizes = [1 if d is None else d for d in dims]
    if array.size not in (1, int(np.prod(sizes))):
        rule, actual = "{key} must be one number, or all entries.", f"{array.size} entries for {name} {type_of(value)}"
        raise ConvertError(rule, key=f"fixed.{name}", got=actual, fix=f"Give 1 or {int(np.prod(sizes))}.")
    array = array.astype(str if is_text else kind)
    return Fixed(dtype, dims, array.reshape(sizes if array.size > 1 else [1] * len(sizes)))


def needs_sizes(graph: ir.Graph) -> bool:
    """Return whether a node with free sizes would have a simpler gradient with static ones."""
    for node in graph.all_nodes():
        x = node.inputs[0] if node.inputs else None
        if node.op_type == "If" and not node.domain:  # exporters write one where a size is unknown
            return True
        if x is None or x.shape is None or not x.shape.rank() or node.domain:
            continue
        same_padding = node.attributes.get_string("auto_pad", "").startswith("SAME")
        if (node.op_type in STATIC or same_padding) and any(not isinstance(d, int) for d in list(x.shape)[2:]):
            return True
    return False


def sizes_of_rows(graph: ir.Graph, rows: Mapping[str, np.ndarray]) -> dict[str, list[int | None]]:
    """Return the sizes of the rows, by input, for inputs whose sizes are free."""
    inputs = query.data_inputs(graph)
    if len(inputs) == len(rows) == 1:
        rows = {str(inputs[0].name): next(iter(rows.values()))}
    sizes_by_input = dict[str, list[int | None]]()
    for value in inputs:
        array, dims = rows.get(str(value.name)), list(value.shape or ())[1:]
        if array is None or len(array.shape) != len(dims) + 1 or all(isinstance(d, int) for d in dims):
            continue
        sizes_by_input[str(value.name)] = [
            None,
            *(None if isinstance(d, int) else n for d, n in zip(dims, array.shape[1:], strict=True)),
        ]
    return sizes_by_input
