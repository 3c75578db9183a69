"""A fitted estimator's arrays as parameters, each with the way back; what must not be trained as constants."""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.graph.builder import Builder
from ortpipe.graph.origins import KEY, mark_attribute, take, within

Step = Sequence[Any]  # of graph/origins.py
_MEMBERS: ContextVar[str] = ContextVar("members", default="")  # in front of parameters' names
NO_FILE: dict[str, np.ndarray] = {}  # whose initializers steps may name


def parameter(
    op: Builder,
    estimator: Any,
    name: str,
    attribute: str,
    *steps: Step,
    dtype: Any,
    index: int | None = None,
    also: Sequence[tuple[str, Sequence[Step]]] = (),
) -> ir.Value:
    """Return a parameter: an attribute's array after some steps, whose way back leads to the attribute again.

    `also` are other attributes, each with its steps, in which the estimator keeps the same numbers.
    """
    array = array_of(estimator, attribute, index)
    value = op.parameter(
        f"{_MEMBERS.get()}{name}", np.ascontiguousarray(take(array, steps, NO_FILE.__getitem__).astype(dtype))
    )
    mark_attribute(value, attribute, *steps, index=index)
    if also:
        twins = [{"attribute": other, "transform": [list(step) for step in way]} for other, way in also]
        value.meta[KEY] |= {"also": twins}
    return value


def array_of(estimator: Any, attribute: str, index: int | None = None) -> np.ndarray:
    """Return an attribute as an array, also a sparse one, a number, and one of a list."""
    array = getattr(estimator, attribute)
    array = array if index is None else array[index]
    return np.asarray(array.toarray() if hasattr(array, "toarray") else array)


def const(op: Builder, array: Any, dtype: Any) -> ir.Value:
    """Return an array that training never touches."""
    return op.const(np.asarray(array).astype(dtype))


@contextlib.contextmanager
def member(op: Builder, name: str, *step: int | str) -> Iterator[None]:
    """Let the parameters that are made meanwhile be those of a part of the estimator: `name.coefficient`."""
    before = _MEMBERS.set(f"{_MEMBERS.get()}{name}.")
    try:
        with within(op.graph, *step):
            yield
    finally:
        _MEMBERS.reset(before)
