"""The role of each input and output of a file: data, state, or a number that stays the same."""

from __future__ import annotations

import re
from dataclasses import dataclass

import onnx_ir as ir

from ortpipe.graph.core import query
from ortpipe.graph.core.operators import having
from ortpipe.graph.core.reach import uses_behind

VIEWS, MOVES = having("view"), having("moves", "view")
RECURRENT, FIRST_STATE = having("recurrent"), 5  # their inputs from this place on are first states
SIDES = re.compile(r"^(in|out|prev|next|old|new)_(?=.*(cache|state|hidden|mem))")  # prefixes of the names of states
OPEN = "???"  # Hydra's mark of a value that the user must set


@dataclass(frozen=True)
class Role:
    """The role of an input.

    Attributes:
        constant: its value in convert.source.fixed; None: it holds data.
        reason: why, for the screen.
    """

    constant: int | float | bool | str | None
    reason: str


DATA, UNREAD = Role(None, "data"), Role(0, "not read by any node")


def roles_of(graph: ir.Graph) -> dict[str, Role]:
    """Return the role of each input that must be fed, by name; at least one holds data."""
    inputs, states = query.data_inputs(graph), states_of(graph)
    roles = {str(value.name): states.get(str(value.name)) or _role(value) for value in inputs}
    if all(role.constant is not None for role in roles.values()):
        roles[str(inputs[0].name)] = DATA
    return roles


def states_of(graph: ir.Graph) -> dict[str, Role]:
    """Return the inputs that hold the state of the step before, by name."""
    states = dict[str, Role]()
    for value in query.data_inputs(graph):
        name = str(value.name)
        following = [str(o.name) for o in graph.outputs if _alike(name, str(o.name)) and _fits(value, o)]
        following.sort(key=lambda other: _digits(other) != _digits(name))
        if value.dtype in query.FLOATS and (following or _begins(value)):
            after = f"; the next one is output {following[0]}" if following else ""
            states[str(value.name)] = Role(0, f"state, 0 at the start of each row{after}")
    return states


def _begins(value: ir.Value) -> bool:
    """Return whether recurrent layers, and no other nodes, read the entries of an input, as their first states."""
    uses = list(uses_behind(value, MOVES))
    return bool(uses) and all(place >= FIRST_STATE and node.op_type in RECURRENT for node, place in uses)


def results_of(graph: ir.Graph) -> list[str]:
    """Return the float outputs, those first that depend on weights and hold no state."""
    floats, inputs = [o for o in graph.outputs if o.dtype in query.FLOATS], query.data_inputs(graph)
    rank = {
        str(o.name): (
            not query.float_initializers(graph, o),  # or its weights are in constants
            any(_alike(str(v.name), str(o.name)) for v in inputs),
        )
        for o in floats
    }
    return sorted(rank, key=lambda name: rank[name])


def _role(value: ir.Value) -> Role:
    sizes = query.sizes(value)
    if not value.uses():
        return UNREAD
    if value.dtype == ir.DataType.BOOL and sizes is not None and all(size == 1 for size in sizes):
        return Role(False, "flag, off")
    if sizes != []:
        return DATA
    numbers = compared(value)
    if not numbers:
        return Role(OPEN, "one number, which the file does not tell")
    others = f" (or {', '.join(map(str, numbers[1:]))})" if numbers[1:] else ""
    return Role(numbers[0], f"one number: the graph compares it with {numbers[0]}{others}")


def compared(value: ir.Value) -> list[int | float]:
    """Return the constants that nodes compare an input with, in the order of the nodes."""
    numbers = dict[int | float, None]()
    for node, _ in uses_behind(value, VIEWS):
        for other in node.inputs if node.op_type == "Equal" else ():
            if (array := query.constant(other)) is not None and array.size == 1:
                numbers[array.item()] = None
    return list(numbers)


def _alike(first: str, other: str) -> bool:
    """Return whether names may be those of a state before and after a step.

    >>> [_alike(*pair) for pair in (("state", "stateN"), ("h0", "hn"), ("in_cache0", "out_cache0"))]
    [True, True, True]
    >>> _alike("input", "output"), _alike("in_image", "out_image")
    (False, False)
    """
    first, other = (SIDES.sub("", name.lower()).rstrip("0123456789n_") or name for name in (first, other))
    return first.startswith(other) or other.startswith(first)


def _digits(name: str) -> str:
    return "".join(filter(str.isdigit, name))


def _fits(first: ir.Value, other: ir.Value) -> bool:
    """Return whether two values may have the same type and shape."""
    sizes, others = query.sizes(first), query.sizes(other)
    if first.dtype != other.dtype or sizes is None or others is None:
        return first.dtype == other.dtype
    return len(sizes) == len(others) and all(a == b or None in (a, b) for a, b in zip(sizes, others, strict=True))
