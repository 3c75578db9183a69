"""Operators that move values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz.sketch import Rejected, Sketch


def concat(s: Sketch) -> str:
    """Values that differ along one axis."""
    x = s.x(least=1)
    axis = s.axis(x)
    others = []
    for _ in range(s.size(0, 2)):
        shape = s.of(x)
        shape[axis] = s.size(1, 3)
        others.append(s.source(shape))
    return s.op("Concat", [x, *others, *([x] if s.flag(0.2) else [])], axis=axis)


def blocks(kind: str) -> Callable[[Sketch], str]:
    """Return the form of DepthToSpace or SpaceToDepth."""

    def form(s: Sketch) -> str:
        size, channels = 2, s.size(1, 2)
        if kind == "DepthToSpace":
            x = s.x(4, shape=[s.size(1, 2), channels * 4, s.size(1, 3), s.size(1, 3)])
            return s.op(kind, [x], blocksize=size, **({"mode": s.choose(["DCR", "CRD"])} if s.flag(0.7) else {}))
        x = s.x(4, shape=[s.size(1, 2), channels, 2 * s.size(1, 2), 2 * s.size(1, 2)])
        return s.op(kind, [x], blocksize=size)

    return form


def expand(s: Sketch) -> str:
    """To a shape that x broadcasts to, or that broadcasts with x's."""
    x = s.x(most=3)
    wide = [s.size(1, 3) if n == 1 else 1 if s.flag(0.3) else n for n in s.of(x)]
    wide = [s.size(1, 3) for _ in range(s.size(0, 1))] + wide[(1 if wide and s.flag(0.1) else 0) :]
    return s.op("Expand", [x, s.const(np.array(wide, np.int64))])


def flatten(s: Sketch) -> str:
    """To a matrix."""
    x = s.x()
    return s.op("Flatten", [x], **({"axis": s.size(-s.rank(x), s.rank(x))} if s.flag(0.8) else {}))


def pad(s: Sketch) -> str:
    """Of all modes; with negative sizes too, and along some axes."""
    x = s.x(least=1)
    rank, modes = s.rank(x), ["constant", "edge", "reflect"] + (["wrap"] if s.opset >= 19 else [])
    mode = s.choose(modes)
    axes = sorted(s.rng.choice(rank, s.size(1, rank), replace=False)) if s.opset >= 18 and s.flag(0.4) else None
    places = axes if axes is not None else range(rank)
    most = [min(2, s.of(x)[a] - 1) if mode in ("reflect", "wrap") else 2 for a in places]
    amounts = np.array([[s.size(-1 if s.flag(0.2) and m > 0 else 0, m) for m in most] for _ in range(2)])
    if any(s.of(x)[a] + amounts[:, i].sum() < 1 for i, a in enumerate(places)):
        raise Rejected
    value = s.choose([None, s.number(0.5)]) if mode == "constant" else None
    given = {"mode": mode} if mode != "constant" or s.flag() else {}
    return s.op("Pad", [x, s.const(amounts.ravel()), value, s.const(axes) if axes is not None else None], **given)


def reshape(s: Sketch) -> str:
    """To other sizes, with −1 and 0 among them."""
    x = s.x()
    sizes = s.of(x)
    shape = s.choose([[-1], sizes[::-1], [1, *sizes], [*sizes, 1], [0, -1] if s.rank(x) > 1 else [-1, 1]])
    return s.op("Reshape", [x, s.const(np.array(shape, np.int64))])


def slices(s: Sketch) -> str:
    """Of some axes, with steps of either sign."""
    x = s.x(least=1)
    axes = [int(a) for a in s.rng.permutation(s.rank(x))[: s.size(1, s.rank(x))]]
    begins, ends, steps = [], [], []
    for a in axes:
        n, step = s.of(x)[a], s.choose([1, 1, 2, -1, -2])
        low, high = sorted(int(v) for v in s.rng.choice(n + 1, 2, replace=False))
        begin, end = (low, high) if step > 0 else (high - 1, low - 1 if low else -(10**6))
        begins.append(begin - n if s.flag(0.3) else begin)
        ends.append(end - n if 0 < end < n and s.flag(0.3) else end)
        steps.append(step)
    front = axes == list(range(len(axes))) and s.flag(0.3)
    given = [None if front else s.const([a - s.rank(x) if s.flag(0.3) else a for a in axes]), s.const(steps)]
    return s.op("Slice", [x, s.const(begins), s.const(ends), *(given if steps != [1] * len(steps) else given[:1])])


def split(s: Sketch) -> list[str]:
    """Into parts, of which not all may be read."""
    x = s.x(least=1)
    axis = s.axis(x)
    n = s.of(x)[axis]
    if n < 2:
        raise Rejected
    cut = s.size(1, n - 1)
    if n % 2 == 0 and s.flag():
        given: dict[str, Any] = {"num_outputs": 2} if s.opset >= 18 else {}
        parts = s.op("Split", [x], 2, axis=axis, **given)
    else:
        parts = s.op("Split", [x, s.const([cut, n - cut])], 2, axis=axis)
    return parts if s.flag(0.6) else parts[1:]


def ones(s: Sketch) -> str:
    """Axes of size 1 put in."""
    x = s.x(most=3)
    rank = s.rank(x) + (count := s.size(1, 2))
    axes = s.rng.permutation(rank)[:count]
    return s.op("Unsqueeze", [x, s.const([int(a) - (rank if s.flag(0.3) else 0) for a in axes])])


def squeeze(s: Sketch) -> str:
    """Axes of size 1 taken out."""
    x = ones(s)
    places = [i for i, n in enumerate(s.of(x)) if n == 1]
    chosen = [int(a) - (s.rank(x) if s.flag(0.3) else 0) for a in s.rng.permutation(places)[: s.size(1, len(places))]]
    return s.op("Squeeze", [x, s.const(chosen) if s.flag(0.8) else None])


def tile(s: Sketch) -> str:
    """Repeated."""
    x = s.x(least=1)
    return s.op("Tile", [x, s.const([s.size(1, 2) for _ in s.of(x)])])


def transpose(s: Sketch) -> str:
    """Axes in another order."""
    x = s.x()
    perm = [int(a) for a in s.rng.permutation(s.rank(x))]
    return s.op("Transpose", [x], **({"perm": perm} if perm and s.flag(0.8) else {}))


FORMS: dict[str, Callable[[Sketch], Any]] = {
    **{kind: blocks(kind) for kind in ("DepthToSpace", "SpaceToDepth")},
    "Concat": concat,
    "Expand": expand,
    "Flatten": flatten,
    "Pad": pad,
    "Reshape": reshape,
    "Slice": slices,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "Transpose": transpose,
    "Unsqueeze": ones,
}
