"""The view of a node that operator functions get, and their shared helpers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = Any  # a NumPy array, constant during tracing, or a JAX array
Result = Any  # an array, or a tuple with one per output


NUMBERS = frozenset(
    (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("bfloat16", "float16", "float32", "float64"),
    )
)


class Unsupported(Exception):
    """This form of an operator cannot be compiled; the message names it."""


@dataclass(frozen=True)
class Node:
    """A node without its inputs.

    Attributes:
        op: the operator's name.
        attributes: Python values, strings decoded.
        outputs: the number of declared outputs, up to the last named one.
        run: runs a graph attribute on arrays for its inputs and returns its outputs; captured values are found
            automatically. `number` is a loop's iteration, which gets random numbers of its own.
        key: returns the key of this node's random numbers in this step.
    """

    op: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    run: Callable[..., list[Array]] | None = None
    key: Callable[[], Any] | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or the default if it is missing."""
        return self.attributes.get(name, default)


def constant(value: Array, what: str) -> np.ndarray:
    """Return a value that must be known during tracing."""
    if not isinstance(value, np.ndarray | np.generic):
        raise Unsupported(f"{what} computed while it runs")
    return np.asarray(value)


def integers(value: Array, what: str) -> list[int]:
    """Return a vector of sizes, axes or indices that must be known during tracing."""
    return [int(n) for n in constant(value, what).ravel()]


def check_numbers(value: Array) -> None:
    """Raise if a value's type is not among the supported number types."""
    if value is not None and (name := np.dtype(value.dtype).name) not in NUMBERS:
        raise Unsupported(f"values of type {name}")


def axes_of(axes: Array | None, rank: int) -> tuple[int, ...] | None:
    """Return axes counted from 0, or None if none are given."""
    return None if axes is None else tuple(axis % rank if rank else 0 for axis in integers(axes, "axes"))
