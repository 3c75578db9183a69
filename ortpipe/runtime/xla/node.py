"""A node as its operator's function sees it, and what such functions share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = Any  # a NumPy array, which is constant while JAX traces, or one of JAX
Result = Any  # an array, or a tuple of one for each output


NUMBERS = frozenset(
    (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("bfloat16", "float16", "float32", "float64"),
    )
)


class Unsupported(Exception):
    """This form of an operator cannot be compiled; the message says which."""


@dataclass(frozen=True)
class Node:
    """A node without its inputs.

    Attributes:
        op: its operator.
        attributes: as Python's values, strings decoded.
        outputs: how many it declares, up to the last that has a name.
        run: a graph among the attributes, arrays for its inputs → its outputs; other values it finds by itself.
            `number` is the round of a loop, in which it draws numbers of its own.
        key: gives the key of random numbers of this node, in this step.
    """

    op: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    run: Callable[..., list[Array]] | None = None
    key: Callable[[], Any] | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or the default where it is not set."""
        return self.attributes.get(name, default)


def constant(value: Array, what: str) -> np.ndarray:
    """Return a value that must be known while the graph is traced."""
    if not isinstance(value, np.ndarray | np.generic):
        raise Unsupported(f"{what} computed while it runs")
    return np.asarray(value)


def integers(value: Array, what: str) -> list[int]:
    """Return a vector of sizes, axes or places that must be known while the graph is traced."""
    return [int(n) for n in constant(value, what).ravel()]


def check_numbers(value: Array) -> None:
    """Refuse a value whose type is not one of the numbers that are computed with here."""
    if value is not None and (name := np.dtype(value.dtype).name) not in NUMBERS:
        raise Unsupported(f"values of type {name}")


def axes_of(axes: Array | None, rank: int) -> tuple[int, ...] | None:
    """Return axes counted from 0; None where none are given."""
    return None if axes is None else tuple(axis % rank if rank else 0 for axis in integers(axes, "axes"))
