"""Weights that a file holds twice, as an exporter copied them: find them, and let all nodes read one of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.origins import KEY, mark

COPIED = 16  # from how many entries on weights are not equal by chance


class Copy(NamedTuple):
    """A weight that is equal to another one, or to its transpose."""

    name: str
    original: str
    transposed: bool

    def __str__(self) -> str:
        return f"{self.name} (a {'transposed ' if self.transposed else ''}copy of {self.original})"


def copies(graph: ir.Graph, names: Sequence[str]) -> list[Copy]:
    """Return which of these weights are equal or transposed copies of another one, but for small or constant ones."""
    seen, described = dict[Any, list[tuple[str, np.ndarray]]](), list[Copy]()
    for name in names:
        array = query.constant(graph.initializers[name])
        if array is None or array.ndim < 2 or array.size < COPIED:
            continue
        alike = seen.setdefault((array.dtype, *sorted(array.shape), array.flat[0], array.flat[-1]), [])
        for other, first in alike:
            kinds = [kind for kind, v in ((False, array), (True, array.T)) if np.array_equal(v, first)]
            if kinds and (array != array.flat[0]).any():
                described.append(Copy(name, other, kinds[0]))
                break
        alike.append((name, array))
    return described


def tie(graph: ir.Graph, names: Sequence[str]) -> list[Copy]:
    """Let the nodes that read a copy of another weight read that one, in place; return the copies.

    A copy that is an output of the graph stays. A weight's origin lists its copies, so that `restore` writes trained
    values to each of them.

    >>> numbers = ", ".join(map(str, range(16)))
    >>> text = f'''<ir_version: 10, opset_import: ["": 21]> g (float[N,4] X) => (float[N,4] y)
    ...   <float[4,4] v = {{{numbers}}}, float[4,4] w = {{{numbers}}}> {{ h = MatMul(X, v) y = MatMul(h, w) }}'''
    >>> graph = ir.from_onnx_text(text).graph
    >>> [str(copy) for copy in tie(graph, ["v", "w"])], list(graph.initializers)
    (['w (a copy of v)'], ['v'])
    """
    tied = [copy for copy in copies(graph, names) if not graph.initializers[copy.name].is_graph_output()]
    op = Builder(graph, "tied", before=graph[0])
    for copy in tied:
        value, original = graph.initializers[copy.name], graph.initializers[copy.original]
        axes = list(range(len(value.shape or ())))[::-1] if copy.transposed else []
        same = op.Transpose(original, perm=axes) if copy.transposed else original
        ir.convenience.replace_all_uses_with(value, same)
        origin = original.meta.get(KEY) or {"initializer": copy.original}
        place = {"transform": [], **(value.meta.get(KEY) or {"initializer": copy.name})}
        place["transform"] = [*place["transform"], *([["permute", *axes]] if axes else [])]
        mark(original, {**origin, "also": [*origin.get("also", ()), place]})
        graph.inputs[:] = [i for i in graph.inputs if i is not value]  # before IR 4, initializers are inputs too
        del graph.initializers[copy.name]
    return tied
