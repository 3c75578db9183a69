"""A fitted estimator's arrays as parameters, each with its origin, or as constants."""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.origins import KEY, mark_attribute, take, within

Step = Sequence[Any]  # see graph/core/origins.py
_MEMBERS: ContextVar[str] = ContextVar("members", default="")  # prefix of parameters' names
NO_FILE: dict[str, np.ndarray] = {}  # no initializers for steps to name


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
    """Return a parameter: an attribute's array after some steps, marked with its origin for `restore`.

    `also` are other attributes, each with its steps, that hold the same numbers.
    """
    array = array_of(estimator, attribute, index)
    value = op.parameter(
        f"{_MEMBERS.get()}{name}", np.ascontiguousarray(take(array, steps, NO_FILE.__getitem__).astype(dtype))
    )
    mark_attribute(value, attribute, *steps, index=index)
    if also:
        copies = [{"attribute": twin, "transform": [list(step) for step in way]} for twin, way in also]
        value.meta[KEY] |= {"also": copies}
    return value


def array_of(estimator: Any, attribute: str, index: int | None = None) -> np.ndarray:
    """Return an attribute as a dense array; with `index`, an entry of a list of arrays."""
    array = getattr(estimator, attribute)
    array = array if index is None else array[index]
    return np.asarray(array.toarray() if hasattr(array, "toarray") else array)


def const(op: Builder, array: Any, dtype: Any) -> ir.Value:
    """Return a constant, which is never trained."""
    return op.const(np.asarray(array).astype(dtype))


@contextlib.contextmanager
def member(op: Builder, name: str, *step: int | str) -> Iterator[None]:
    """Prefix the names of parameters created inside with a part's name: `name.coefficient`."""
    before = _MEMBERS.set(f"{_MEMBERS.get()}{name}.")
    try:
        with within(op.graph, *step):
            yield
    finally:
        _MEMBERS.reset(before)
