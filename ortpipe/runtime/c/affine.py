"""Indices as sums of loop variables times constants: a₁·i₁ + a₂·i₂ + … + c."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Affine:
    """Σ factor · variable + constant.

    >>> str(Affine.of("i") * 10 + Affine.of("j") + Affine((), 3))
    'i * 10 + j + 3'
    """

    terms: tuple[tuple[str, int], ...] = ()  # variable, factor
    constant: int = 0

    @classmethod
    def of(cls, variable: str) -> Affine:
        """Return a variable."""
        return cls(((variable, 1),))

    def __add__(self, other: Affine) -> Affine:
        factors = dict(self.terms)
        for variable, factor in other.terms:
            factors[variable] = factors.get(variable, 0) + factor
        return Affine(tuple((v, f) for v, f in factors.items() if f), self.constant + other.constant)

    def __mul__(self, factor: int) -> Affine:
        return Affine(tuple((v, f * factor) for v, f in self.terms if f * factor), self.constant * factor)

    def __str__(self) -> str:
        parts = [v if f == 1 else f"{v} * {f}" for v, f in self.terms]
        return " + ".join(parts + ([str(self.constant)] if self.constant or not parts else []))


ZERO = Affine()
Index = tuple[Affine, ...]
Let = Callable[[str, int], Affine]  # declares a variable for an expression below a bound


def address(shape: Sequence[int], index: Index) -> Affine:
    """Return the position of an entry in an array in C order."""
    total = ZERO
    for size, part in zip(shape, index, strict=True):
        total = total * size + part
    return total


def unravel(position: Affine, shape: Sequence[int], bounds: Mapping[str, int], let: Let) -> Index:
    """Return the index of a position in C order; `bounds` are the numbers of values of each variable."""
    index, rest = list[Affine](), [size for size in shape if size != 1]
    for size in reversed(shape):
        if size == 1:
            index.append(ZERO)
            continue
        rest.pop()
        if not rest:
            index.append(position)
            continue
        position, remainder = _divided(position, size, math.prod(rest), bounds, let)
        index.append(remainder)
    return tuple(reversed(index))


def _divided(x: Affine, size: int, count: int, bounds: Mapping[str, int], let: Let) -> tuple[Affine, Affine]:
    """Return ⌊x / size⌋, which is less than `count`, and the remainder."""
    whole = tuple((v, f // size) for v, f in x.terms if f % size == 0)
    part = tuple((v, f) for v, f in x.terms if f % size)
    largest = sum(f * (bounds[v] - 1) for v, f in part) + x.constant % size
    if all(f > 0 for _, f in part) and largest < size:
        return Affine(whole, x.constant // size), Affine(part, x.constant % size)
    return let(f"({x}) / {size}", count), let(f"({x}) % {size}", size)
