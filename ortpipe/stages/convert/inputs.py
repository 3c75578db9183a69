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
STATIC = ("AveragePool", "LpPool", "Resize", "Upsample")  # whose gradients have constant matrices then
ROWS_NAMES = ("batch", "batch_size", "batchsize", "batch_dim")  # what exporters call the axis of rows


@dataclass(frozen=True)
class Fixed:
    """What an input always is: `dims` are its sizes, None where it has one entry for each row."""

    dtype: ir.DataType
    dims: tuple[int | None, ...]
    value: np.ndarray  # with 1 where there is an entry for each row, or one number for all places

    def array(self, rows: int) -> np.ndarray:
        """Return it as it is fed along with so many rows."""
        return np.array(np.broadcast_to(self.value, [rows if d is None else d for d in self.dims]))


def set_shapes(graph: ir.Graph, shapes: Mapping[str, Sequence[int | None]]) -> None:
    """Give inputs the sizes that the config says, where the file leaves them free."""
    inputs = {str(v.name): v for v in query.data_inputs(graph)}
    for name, sizes in shapes.items():
        value = _input(inputs, name, f"shape.{name}")
        declared = list(value.shape) if value.shape is not None else [None] * len(sizes)
        fits = len(declared) == len(sizes) and all(
            s is None or s == d or not isinstance(d, int) for s, d in zip(sizes, declared, strict=True)
        )
        if not fits:
            raise ConvertError(
                "{key} must have the input's dimensions, and the sizes that the file fixes.",
                key=f"shape.{name}",
                got=f"{list(sizes)} for an input of shape {type_of(value)}",
                fix="Write null for what the file fixes, and for the rows.",
            )
        value.shape = ir.Shape([d if s is None else s for s, d in zip(sizes, declared, strict=True)])


def drop_unread(graph: ir.Graph, given: Collection[str]) -> list[str]:
    """Take away the inputs that nothing reads and the data do not hold; return their names."""
    unread = [v for v in query.data_inputs(graph) if not v.uses() and not v.is_graph_output() and v.name not in given]
    graph.inputs[:] = [v for v in graph.inputs if v not in unread]
    return [str(v.name) for v in unread]


def fix(graph: ir.Graph, values: Mapping[str, Any], rows: Collection[str]) -> dict[str, Fixed]:
    """Make constants of the inputs that the config gives a value, in place.

    Args:
        graph: the graph.
        values: input → what it always is: one number for all its places, or all its entries.
        rows: the names that the first dimension of data inputs has.
    """
    inputs = {str(v.name): v for v in graph.inputs}
    fixed = {name: _fixed(_input(inputs, name, f"fixed.{name}"), value, rows) for name, value in values.items()}
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


def check_data_inputs(graph: ir.Graph, given: Collection[str] | None) -> None:
    """Refuse an input that has no rows: what it is instead is never guessed.

    `given` are the names of the arrays of the data, if they are known; one array alone fits the only input.
    """
    inputs = query.data_inputs(graph)
    scalars = [v for v in inputs if v.shape is not None and v.shape.rank() == 0]
    missing = [v for v in inputs if v.name not in given] if given is not None else scalars
    if not missing or (not scalars and given is not None and len(inputs) == len(given) == 1):
        return
    if len(missing) == len(inputs):  # the data's own is called otherwise: the one that looks most like rows
        missing.remove(min(missing, key=lambda v: (v in scalars, _first_is_fixed(v))))
    held = "" if given is None else f"; the data hold {', '.join(sorted(given))}"
    example = ", ".join(f"{v.name}: {'false' if v.dtype == ir.DataType.BOOL else 0}" for v in missing)
    texts = "input_ids" in (given or ()) and any(v.name == "token_type_ids" for v in missing)
    fix = "Add token_type_ids to data.tokens.inputs, or set " if texts else "Set "
    raise ConvertError(
        "Every input of a model holds data, or is given its value by {key}.",
        key="fixed",
        got=f"inputs {', '.join(f'{v.name} {type_of(v)}' for v in inputs)}{held}",
        fix=f"{fix}{{key}}={{{example}}} (a number for all places, or a list of all entries) for what is no data, such "
        "as states, flags and sampling rates; of what is, give arrays under the inputs' names."
        if missing
        else f"Give the data's array the name {inputs[0].name}; arrays beside it are labels (data.source.label, "
        "data.source.heads), or are left out of the data.",
    )


def axis_of(value: ir.Value, axes: Axes) -> int:
    """Return the axis of rows of an input or output: as the config says, or where only one is called so, else 0."""
    rank = value.shape.rank() if value.shape is not None else None
    if isinstance(axes, int):
        axis = axes if rank is None or rank > 1 else 0
    elif axes and value.name in axes:
        axis = axes[str(value.name)]
    else:
        named = [i for i, d in enumerate(value.shape or ()) if isinstance(d, ir.SymbolicDim) and _is_rows(d.value)]
        axis = named[0] if len(named) == 1 else 0
    if axis and rank is not None and not 0 <= axis < rank:
        rule, got = "{key} must be an axis.", f"{axis} for {value.name!r} of shape {type_of(value)}"
        raise ConvertError(rule, key="batch_axis", got=got, fix=f"Choose one of 0 to {rank - 1}.")
    return axis


def turn(graph: ir.Graph, axes: Axes, outputs: Collection[str] | None = None) -> dict[str, int]:
    """Put the axis of rows of inputs and outputs first, by a Transpose each; return which axis it was."""
    if isinstance(axes, Mapping):
        names = [str(v.name) for v in (*graph.inputs, *graph.outputs)]
        for name in axes:
            if name not in names:
                fix = nearest(name, names)
                raise ConvertError("{key} is by the names of inputs and outputs.", key="batch_axis", got=name, fix=fix)
    turned = dict[str, int]()
    for value in query.data_inputs(graph):
        if (axis := axis_of(value, axes)) == 0:
            continue
        dims = list(value.shape or ())
        perm = [*range(1, axis + 1), 0, *range(axis + 1, len(dims))]
        op, first = Builder(graph, "rows", before=graph[0]), value
        uses = list(value.uses())
        old = op.Transpose(first, perm=perm)
        for node, place in uses:
            node.replace_input_with(place, old)
        old.type, old.shape = value.type, value.shape
        value.shape = ir.Shape([dims[axis], *dims[:axis], *dims[axis + 1 :]])
        turned[str(value.name)] = axis
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
        turned[name] = axis
    return turned


def _is_rows(name: str | None) -> bool:
    return name is not None and name.lower() in ROWS_NAMES


def _first_is_fixed(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.rank() > 0 and isinstance(value.shape[0], int)


def _input(inputs: Mapping[str, ir.Value], name: str, key: str) -> ir.Value:
    if name not in inputs:
        raise ConvertError("{key} must be an input of the model.", key=key, got=repr(name), fix=nearest(name, inputs))
    return inputs[name]


def _fixed(value: ir.Value, given: Any, rows: Collection[str]) -> Fixed:
    name, shape, dtype = str(value.name), value.shape, value.dtype
    if shape is None or dtype is None:
        rule = "An input that is given its value has a shape, so that it is known how often it stands."
        fix = f"Set {{at}}shape.{name} too."
        raise ConvertError(rule, key=f"fixed.{name}", got=f"{name!r} of unknown shape", fix=fix)
    free = [d for d in shape if not isinstance(d, int)]
    named = [d for d in free if d.value in rows or _is_rows(d.value)]
    if len(free) > 1 and len(named) != len(free):
        raise ConvertError(
            "An input that is given its value has known sizes; one may be free, which is that of the rows.",
            key=f"fixed.{name}",
            got=f"{name} {type_of(value)}",
            fix=f"Set {{at}}shape.{name} to its sizes, with null for the rows.",
        )
    dims = tuple(d if isinstance(d, int) else None for d in shape)
    kind = np.dtype(object if dtype == ir.DataType.STRING else dtype.numpy())
    array, text = np.array(given), dtype == ir.DataType.STRING
    whole = kind.kind not in "iub" or array.dtype.kind in "iub" or (array.dtype.kind == "f" and (array % 1 == 0).all())
    if (array.dtype.kind in "US") != text or array.dtype == object or not whole:
        rule, got = "{key} must be of the input's type.", f"{given!r:.100} for {name} {type_of(value)}"
        raise ConvertError(rule, key=f"fixed.{name}", got=got, fix="Give a number, or a list of all entries.")
    sizes = [1 if d is None else d for d in dims]
    if array.size not in (1, int(np.prod(sizes))):
        rule, got = "{key} must be one number, or all entries.", f"{array.size} entries for {name} {type_of(value)}"
        raise ConvertError(rule, key=f"fixed.{name}", got=got, fix=f"Give 1 or {int(np.prod(sizes))}.")
    array = array.astype(str if text else kind)
    return Fixed(dtype, dims, array.reshape(sizes if array.size > 1 else [1] * len(sizes)))


def needs_sizes(graph: ir.Graph) -> bool:
    """Say whether a node has a simpler gradient for static sizes, and sizes that are free."""
    for node in graph.all_nodes():
        x = node.inputs[0] if node.inputs else None
        if node.op_type == "If" and not node.domain:  # exporters write one where they do not know a size
            return True
        if x is None or x.shape is None or not x.shape.rank() or node.domain:
            continue
        same = node.attributes.get_string("auto_pad", "").startswith("SAME")
        if (node.op_type in STATIC or same) and any(not isinstance(d, int) for d in list(x.shape)[2:]):
            return True
    return False


def sizes_of_rows(graph: ir.Graph, rows: Mapping[str, np.ndarray]) -> dict[str, list[int | None]]:
    """Return the sizes that rows have where inputs leave them free, by input."""
    inputs = query.data_inputs(graph)
    if len(inputs) == len(rows) == 1:
        rows = {str(inputs[0].name): next(iter(rows.values()))}
    found = dict[str, list[int | None]]()
    for value in inputs:
        array, dims = rows.get(str(value.name)), list(value.shape or ())[1:]
        if array is None or len(array.shape) != len(dims) + 1 or all(isinstance(d, int) for d in dims):
            continue
        found[str(value.name)] = [
            None,
            *(None if isinstance(d, int) else n for d, n in zip(dims, array.shape[1:], strict=True)),
        ]
    return found
