"""Einsum."""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir import Node, Value

from ortpipe.autodiff.backward import Backward, Gradients, Rules, ranked
from ortpipe.graph.core.types import wide


def einsum(op: Backward, node: Node, dy: Value, *inputs: Value) -> Gradients:
    """Einsum: each input's gradient is the einsum of dy and the other inputs with input and output terms swapped.

    Letters that only one input has are summed in the forward, so its gradient is expanded along them.
    """
    terms, result = _equation(node, inputs)
    sizes, gradients = _sizes(terms, inputs), []
    for i, (term, x) in enumerate(zip(terms, inputs, strict=True)):
        other_terms = [(t, v) for j, (t, v) in enumerate(zip(terms, inputs, strict=True)) if j != i]
        seen = set(result).union(*(t for t, _ in other_terms))
        letters = "".join(c for c in dict.fromkeys(term) if c in seen)
        if other_terms:
            equation = ",".join([result, *(t for t, _ in other_terms)]) + "->" + letters
            dx = op.Einsum(dy, *(v for _, v in other_terms), equation=equation)
        else:
            dx = op.Transpose(dy, perm=[result.index(c) for c in letters]) if letters != result else dy
        dx = _spread(op, dx, letters, term, x)
        read = _sizes([t for t, _ in other_terms], [v for _, v in other_terms]) | {c: sizes[c] for c in result}
        whole = letters != term  # `_spread` expands
        dx.shape = ir.Shape([sizes[c] if whole else read[c] for c in term])  # 1 where x is broadcast by others
        gradients.append(dx)
    return gradients


def _sizes(terms: Sequence[str], inputs: Sequence[Value]) -> dict[str, Any]:
    """Return each letter's dimension; letters of `...` get the broadcast one."""
    pairs = [(c, d) for term, x in zip(terms, inputs, strict=True) for c, d in zip(term, ranked(x), strict=True)]
    return {c: wide([d for letter, d in pairs if letter == c]) for c, _ in pairs}


def _spread(op: Backward, dx: Value, letters: str, term: str, x: Value) -> Value:
    """Restore the letters that were summed, and the diagonals that a repeated letter reads."""
    missing = [i for i, c in enumerate(dict.fromkeys(term)) if c not in letters]
    repeated = [place for place, c in enumerate(term) if term.index(c) != place]
    for axes in (missing, repeated):
        dx = op.Unsqueeze(dx, axes) if axes else dx
    if missing or repeated:
        dx = op.Expand(dx, op.shape(x))
    for place in repeated:
        lines = [
            op.Reshape(op.Range(0, op.dim(x, axis), 1), [-1 if p == axis else 1 for p in range(len(term))])
            for axis in (term.index(term[place]), place)
        ]
        dx = op.Where(op.Equal(*lines), dx, 0)
    return dx


def _equation(node: Node, inputs: Sequence[Value]) -> tuple[list[str], str]:
    """Return the terms of an equation with an explicit output and with letters in place of `...`."""
    text = node.attributes["equation"].as_string().replace(" ", "")
    operands, arrow, result = text.partition("->")
    unused = "".join(c for c in "ZYXWVUTSRQPONMLKJIHGFEDCBA" if c not in text)
    if not arrow:
        single = [c for c in sorted(set(operands) - set(",.")) if operands.count(c) == 1]
        result = ("..." if "..." in operands else "") + "".join(single)
    terms = operands.split(",")
    widths = [ranked(x).rank() - len(t.replace("...", "")) for t, x in zip(terms, inputs, strict=True)]
    most = max((w for w, t in zip(widths, terms, strict=True) if "..." in t), default=0)
    plain = [t.replace("...", unused[:most][most - w :]) for w, t in zip(widths, terms, strict=True)]
    return plain, result.replace("...", unused[:most])


RULES: Rules = {"Einsum": einsum}
