"""Products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzz.sketch import Sketch

EQUATIONS = (
    "ij,jk->ik",
    "ij,kj->ki",
    "bij,bjk->bik",
    "ii->i",
    "ij->ji",
    "bhwc,hkc->bhwk",
    "...ij,jk->...ik",
    "i,j->ij",
)
MORE = ("ij->", "ij,ij->i", "i,i->", "bij,jk,bl->bikl", "ijj->i", "...i->...", "ij,jk")


def matmul(s: Sketch) -> str:
    """Vectors, matrices and stacks of them."""
    x = s.x(least=1)
    last = s.of(x)[-1]
    if s.flag(0.15):
        other = s.x(1, shape=[last])
    else:
        front = [1 if s.flag(0.4) else n for n in s.of(x)[:-2]][s.size(0, max(0, s.rank(x) - 2)) :]
        other = s.source([*front, last, s.size(1, 4)])
    if s.rank(x) == 2 and s.rank(other) == 2 and s.flag(0.3):
        return s.op("MatMul", [s.op("Transpose", [other], perm=[1, 0]), s.op("Transpose", [x])])
    return s.op("MatMul", [x, other])


def gemm(s: Sketch) -> str:
    """α A' B' + β C."""
    x = s.x(2)
    first, second = (int(s.flag(0.4)) for _ in range(2))
    m, k = s.of(x) if not first else s.of(x)[::-1]
    n = s.size(1, 4)
    c = s.choose([None, [n], [1, n], [m, 1], [m, n], [], [1]])
    given: dict[str, Any] = {"transA": first, "transB": second} if first or second or s.flag() else {}
    given |= {"alpha": 0.5, "beta": 1.5} if s.flag(0.4) else {}
    return s.op("Gemm", [x, s.source([n, k] if second else [k, n]), s.source(c) if c is not None else None], **given)


def einsum(s: Sketch) -> str:
    """One of several equations, with sizes that fit."""
    equation = s.choose([*EQUATIONS, *MORE])
    sizes: dict[str, int] = {}
    operands = []
    for term in equation.split("->")[0].split(","):
        shape = [s.size(1, 3)] * ("..." in term)
        shape += [sizes.setdefault(c, s.size(1, 4)) for c in term.replace("...", "")]
        operands.append(shape)
    found = [s.x(len(shape), shape=shape) if i == 0 else s.source(shape) for i, shape in enumerate(operands)]
    return s.op("Einsum", found, equation=equation)


FORMS: dict[str, Callable[[Sketch], str]] = {"Einsum": einsum, "Gemm": gemm, "MatMul": matmul}
