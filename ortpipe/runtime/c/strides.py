"""Positions of entries in memory: first + Σ step · index, as in NumPy's strides, but in entries."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Strides:
    """The position of the first entry, and the step between neighbours along each axis; 0 along axes of size 1.

    >>> Strides(3, (10, 1)).text(["i", "j"])
    'i * 10 + j + 3'
    """

    first: int
    steps: Shape

    def text(self, variables: Sequence[str]) -> str:
        """Return a position as an expression of C."""
        terms = [v if step == 1 else f"{v} * {step}" for v, step in zip(variables, self.steps, strict=True) if step]
        return " + ".join(terms + ([str(self.first)] if self.first or not terms else []))


def contiguous(shape: Sequence[int], first: int = 0) -> Strides:
    """Return the positions in C order."""
    return Strides(first, tuple(0 if n == 1 else math.prod(shape[axis + 1 :]) for axis, n in enumerate(shape)))


def broadcast(shape: Shape, to: Sequence[int]) -> Strides:
    """Return the positions in an array of which an array of a larger shape repeats the entries."""
    return Strides(0, ((0,) * (len(to) - len(shape)) + contiguous(shape).steps))


def positions(strides: Strides, shape: Sequence[int]) -> np.ndarray:
    """Return the position of each entry."""
    axes = [step * np.arange(n) for step, n in zip(strides.steps, shape, strict=True)]
    return sum(np.ix_(*axes), np.full(shape, strides.first))


def fitted(places: np.ndarray) -> Strides | None:
    """Return the strides that lead to these positions; None if there are none."""
    if places.size == 0:
        return Strides(0, (0,) * places.ndim)
    first = places[(0,) * places.ndim]
    steps = [int(places.take(1, axis).flat[0] - first) if n > 1 else 0 for axis, n in enumerate(places.shape)]
    strides = Strides(int(first), tuple(steps))
    return strides if np.array_equal(positions(strides, places.shape), places) else None


@functools.lru_cache(maxsize=2**14)
def composed(outer: Strides, domain: Shape, inner: Strides, shape: Shape) -> Strides | None:
    """Return the positions, from a domain, behind an array of this shape whose own positions are `inner`."""
    if inner == contiguous(shape):
        return outer
    if not any(inner.steps):
        return Strides(inner.first, (0,) * len(domain))
    return fitted(positions(inner, shape).ravel()[positions(outer, domain)])
