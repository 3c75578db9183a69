"""Operators that read or write at places, and Dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz.sketch import Rejected, Sketch


def places(s: Sketch, count: int, shape: list[int]) -> np.ndarray:
    """Return places along an axis of a size, counted from either end."""
    found = s.rng.integers(0, count, shape)
    return np.where(s.rng.random(shape) < 0.3, found - count, found)


def compress(s: Sketch) -> str:
    """Where a condition holds, along an axis or in the flat values."""
    x = s.x(least=1)
    axis = s.axis(x) if s.flag(0.7) else None
    count = s.of(x)[axis] if axis is not None else int(np.prod(s.of(x)))
    keep = s.rng.random(count) < 0.6
    keep[0] = True
    return s.op("Compress", [x, s.const(keep, np.bool_)], **({"axis": axis} if axis is not None else {}))


def cumsum(s: Sketch) -> str:
    """Running sums of either direction."""
    x = s.x(least=1)
    given = {k: 1 for k in ("exclusive", "reverse") if s.flag(0.4)}
    return s.op("CumSum", [x, s.const(s.axis(x), np.int64)], **given)


def dropout(s: Sketch) -> str:
    """Outside of training: x as it is."""
    x = s.x()
    given = s.choose(
        [[], [s.number(0.5)], [s.number(0.5), s.const(False, np.bool_)], [s.number(0), s.const(1, np.bool_)]]
    )
    return s.op("Dropout", [x, *given])


def gather(s: Sketch) -> str:
    """Entries along an axis."""
    x = s.x(least=1, most=3)
    axis = s.axis(x)
    indices = places(s, s.of(x)[axis], s.shape(s.size(0, 2)))
    return s.op("Gather", [x, s.const(indices)], **({"axis": axis} if axis or s.flag() else {}))


def gather_elements(s: Sketch) -> str:
    """One entry along an axis for each index."""
    x = s.x(least=1)
    axis = s.axis(x)
    shape = [s.size(1, n) for n in s.of(x)]
    shape[axis] = s.size(1, 4)
    return s.op("GatherElements", [x, s.const(places(s, s.of(x)[axis], shape))], axis=axis)


def gather_nd(s: Sketch) -> str:
    """Slices by tuples of places."""
    x = s.x(least=1)
    batch = s.size(0, s.rank(x) - 1) if s.flag(0.4) else 0
    depth = s.size(1, s.rank(x) - batch)
    shape = [*s.of(x)[:batch], *s.shape(s.size(1, 2) if not batch else 1)]
    indices = np.stack([places(s, n, shape) for n in s.of(x)[batch : batch + depth]], -1)
    return s.op("GatherND", [x, s.const(indices)], **({"batch_dims": batch} if batch or s.flag() else {}))


def one_hot(s: Sketch) -> str:
    """Rows of the two values off and on."""
    x = s.x(1, shape=[2])
    depth = s.size(2, 4)
    indices = places(s, depth, s.shape(s.size(1, 2)))
    if s.flag(0.3):
        indices.flat[0] = depth + 3
    rank = indices.ndim
    axis = s.size(-rank - 1, rank)
    return s.op("OneHot", [s.const(indices), s.const(depth), x], **({"axis": axis} if s.flag(0.7) else {}))


def reverse_sequence(s: Sketch) -> str:
    """The first entries of each row, backwards."""
    x = s.x(least=2)
    time = s.size(0, 1)
    lengths = s.rng.integers(1, s.of(x)[time] + 1, s.of(x)[1 - time])
    return s.op("ReverseSequence", [x, s.const(lengths)], time_axis=time, batch_axis=1 - time)


def reduction(s: Sketch, kinds: dict[int, list[str]]) -> dict[str, str]:
    """Return how entries that meet are joined, by the opset."""
    known = [k for since, some in kinds.items() if s.opset >= since for k in some]
    return {"reduction": s.choose(known)} if known and s.flag(0.7) else {}


JOINED = {16: ["none", "add", "mul"], 18: ["max", "min"]}


def scatter_elements(s: Sketch) -> str:
    """Updates along an axis, which replace or join what was there."""
    x = s.x(least=1)
    axis, given = s.axis(x), reduction(s, JOINED)
    shape = [s.size(1, n) for n in s.of(x)]
    count = s.of(x)[axis]
    if given.get("reduction", "none") == "none":
        order = s.rng.random([*shape[: axis % len(shape)], count, *shape[axis % len(shape) + 1 :]]).argsort(axis)
        indices = np.take(order, range(shape[axis]), axis)  # none twice: which one would stay is not defined
    else:
        shape[axis] = s.size(1, 4)
        indices = places(s, count, shape)
    return s.op("ScatterElements", [x, s.const(indices), s.source(list(indices.shape))], axis=axis, **given)


def scatter_nd(s: Sketch) -> str:
    """Updates of slices."""
    x = s.x(least=1)
    depth, given = s.size(1, s.rank(x)), reduction(s, JOINED)
    front, rest = s.of(x)[:depth], s.of(x)[depth:]
    every = np.array(list(np.ndindex(*front)))
    alone = given.get("reduction", "none") == "none"
    chosen = s.rng.choice(len(every), s.size(1, min(3, len(every))), replace=not alone)
    indices = every[chosen]
    return s.op("ScatterND", [x, s.const(indices), s.source([len(indices), *rest])], **given)


def top_k(s: Sketch) -> str:
    """The largest or the smallest entries."""
    x = s.x(least=1)
    axis = s.axis(x)
    given = {"axis": axis, "largest": int(s.flag(0.6)), "sorted": 1}
    return s.op("TopK", [x, s.const([s.size(1, s.of(x)[axis])])], 2, **given)[0]


def trilu(s: Sketch) -> str:
    """A triangle."""
    x = s.x(least=2)
    return s.op("Trilu", [x, s.const(s.size(-2, 2)) if s.flag(0.7) else None], upper=int(s.flag()))


def center_crop_pad(s: Sketch) -> str:
    """Cut or padded in the middle."""
    x = s.x(least=1)
    if s.rank(x) > 2:
        raise Rejected
    return s.op("CenterCropPad", [x, s.const([s.size(1, 5) for _ in s.of(x)])])


def unique(s: Sketch) -> str:
    """Different values, of all entries or along an axis."""
    x = s.x(least=1)
    return s.op("Unique", [x], **({"axis": s.axis(x)} if s.flag(0.5) else {}), sorted=int(s.flag()))


FORMS: dict[str, Callable[[Sketch], Any]] = {
    "CenterCropPad": center_crop_pad,
    "Compress": compress,
    "CumSum": cumsum,
    "Dropout": dropout,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "OneHot": one_hot,
    "ReverseSequence": reverse_sequence,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TopK": top_k,
    "Trilu": trilu,
    "Unique": unique,
}
