"""A random graph: a few operators after a first one that is named, and what to differentiate."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np
import onnx

from fuzz.forms import FORMS
from fuzz.sketch import Rejected, Sketch, read_by
from ortpipe.autodiff.table import EXPANSIONS, RULES

OLDEST, NEWEST = 13, 24
FLAT = {"Floor", "Ceil", "Round", "Sign", "Hardmax", "Greater", "Less", "Shape"}
KINDS = ("vjp", "vjp", "vjp", "vjp", "jvp", "hvp")


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with what is fed to it, and the derivative that is asked for."""

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    of: tuple[str, ...]
    wrt: tuple[str, ...]
    kind: str = "vjp"


def case(seed: int, first: str | None = None, among: Collection[str] | None = None) -> Case:
    """Return the graph of a seed, in which the operator `first` is, where it could be drawn.

    With `among` the operators are of these, and what the forms of these add.
    """
    rng = np.random.default_rng([17, seed])
    kinds = sorted(FORMS) if among is None else sorted({*among} & {*FORMS})
    first = first or kinds[seed % len(kinds)]
    opset = int(rng.integers(max(OLDEST, _since(first)), NEWEST + 1))
    s = Sketch(rng, opset)
    known = [
        kind for kind in kinds if _since(kind) <= opset and (kind in RULES or kind in EXPANSIONS or _is_function(kind))
    ]
    before, after = s.size(0, 2), s.size(1, 6)
    for kind in [*(s.choose(known) for _ in range(before)), first, *(s.choose(known) for _ in range(after))]:
        _write(s, kind)
    if not s.pool:
        s.pool.append(s.op("Tanh", [s.source([2])]))
    read = {name for node in s.nodes for name in read_by(node)}
    of = tuple(v for v in s.pool if v not in read and v not in s.inputs and v not in s.parameters)[-3:]
    of = of or (s.nodes[-1].output[0],)
    model = s.model(of, free=s.flag(0.3))
    kind = s.choose(KINDS)
    feeds = {i.name: s.inputs[i.name].astype(np.float32) for i in model.graph.input}
    reached = reach(model.graph, of)
    sources = [n for n in [*s.inputs, *s.parameters] if n in reached]
    return Case(model, feeds, of, tuple(sources), kind)


def _write(s: Sketch, kind: str) -> None:
    for _ in range(6):
        mark, held = s.mark(), list(s.pool)
        try:
            found = FORMS[kind](s)
        except Rejected:
            s.back(mark)
            s.pool = held
            continue
        s.pool += [found] if isinstance(found, str) else found
        return


def _since(kind: str) -> int:
    return min(schema.since_version for schema in _schemas()[kind])


def _is_function(kind: str) -> bool:
    return any(schema.has_function or schema.has_context_dependent_function for schema in _schemas()[kind])


def _schemas() -> dict[str, list[onnx.defs.OpSchema]]:
    if not _SCHEMAS:
        for schema in onnx.defs.get_all_schemas_with_history():
            if not schema.domain:
                _SCHEMAS.setdefault(schema.name, []).append(schema)
    return _SCHEMAS


_SCHEMAS: dict[str, list[onnx.defs.OpSchema]] = {}


def reach(graph: onnx.GraphProto, of: tuple[str, ...]) -> set[str]:
    """Return the values that a gradient comes to: all in front of `of`, but behind steps."""
    found = set(of)
    for node in reversed(graph.node):
        if found.intersection(node.output) and node.op_type not in FLAT:
            names = read_by(node, FLAT)
            if node.op_type == "If":
                names = [n for n in names if n != node.input[0]]
            found.update(names[:1] if node.op_type == "CastLike" else names)
    return found
