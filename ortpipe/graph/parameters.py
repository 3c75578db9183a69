"""Which float initializers are parameters: by what reads them, and by what they hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortpipe.graph import query
from ortpipe.graph.origins import KEY
from ortpipe.graph.readers import Use, UseFinder, size_of

SHOWN = 3  # names in a sentence
NOTHING: Mapping[str, str | None] = {}


@dataclass(frozen=True)
class Choice:
    """What is trained by default."""

    trained: tuple[str, ...]  # names, in the graph's order
    left: Mapping[str, str]  # the other float initializers that the output depends on, each with the reason
    shared: Mapping[str, int]  # of those trained, how many nodes read it as a weight, where more than one does


def choose(graph: ir.Graph, *outputs: ir.Value, said: Mapping[str, str | None] = NOTHING) -> Choice:
    """Return which of the float initializers that any of these outputs depends on are parameters.

    Weights of products, convolutions, normalizations and recurrences, slopes of PRelu, embeddings, and what is added to
    what they give, or multiplied with it per channel, are; masks, tables of sines and cosines, bases of Fourier
    transforms, settings of operators, running statistics and single numbers are not. What is read in no such way is
    left too. Of some the source has `said` why it is not trained, or None: it is.

    >>> text = '''<ir_version: 10, opset_import: ["": 21]> g (float[N,2] X) => (float[N,3] y)
    ...   <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}, float[1] t = {0.5}>
    ...   { h = MatMul(X, w) z = Add(h, b) y = Mul(z, t) }'''
    >>> graph = ir.from_onnx_text(text).graph
    >>> choose(graph, graph.outputs[0])
    Choice(trained=('w', 'b'), left={'t': 'one number'}, shared={})
    """
    reader = UseFinder(graph)
    trained, left, shared = [], dict[str, str](), dict[str, int]()
    for name in query.float_initializers(graph, *outputs):
        value = graph.initializers[name]
        found = reader.uses(value)
        whole = value.meta.get(KEY, {}).get("initializer", name)  # what it was parted from
        reason = said[whole] if whole in said else _why_not(value, found)
        if reason is not None:
            left[name] = reason
            continue
        trained.append(name)
        if (count := len({use.node for use in found if use.trained})) > 1:
            shared[name] = count
    return Choice(tuple(trained), left, shared)


def sentence(trained: Sequence[str], left: Mapping[str, str], *, by_default: bool = False) -> str:
    """Return which float initializers are trained and which are not, in words.

    >>> sentence(["w", "b"], {"mask": "a mask", "t": "one number", "s": "one number"})
    'trains 2 of 5 float initializers: w, b; leaves mask (a mask), t, s (one number)'
    """
    reasons: dict[str, list[str]] = {}
    for name, reason in left.items():
        reasons.setdefault(reason, []).append(name)
    text = f"trains {len(trained)} of {len(trained) + len(left)} float initializers{' by default' * by_default}"
    text += f": {some(trained)}" if trained else ""
    whys = ", ".join(f"{some(names)} ({reason})" for reason, names in reasons.items())
    return text + (f"; leaves {whys}" if whys else "")


def some(names: Sequence[str]) -> str:
    """Return the first of these names, and how many there are more.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = len(names) - SHOWN
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:SHOWN])} and {more} more"


def _why_not(value: ir.Value, uses: Sequence[Use]) -> str | None:
    """Return why an initializer is not trained, or None for a parameter."""
    if value.shape == ():
        return "one number"
    if reasons := [use.reason for use in uses if use.reason]:
        weight = any(use.trained for use in uses)
        return reasons[0] + (", and a weight elsewhere: convert.untie=true parts them" if weight else "")
    if any(use.trained for use in uses):
        return None
    if size_of(value) == 1:
        return "one number"
    operators = dict.fromkeys(use.node.op_type for use in uses)
    return f"read by {' and '.join(operators)}, not as a weight" if uses else "no gradient reaches it"
