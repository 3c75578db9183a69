"""⟨J v, u⟩ = ⟨v, Jᵀ u⟩ without any tolerance, for every operator that is linear in what it reads, or in one of it.

Float64 holds small integers, and their halves, exactly: a gradient that misses, doubles or swaps one entry is seen,
whatever its size. The graphs are the fuzzer's, drawn in integers; J v is f(v) − f(0), by onnx's own evaluator.
"""

from __future__ import annotations

import numpy as np
import pytest
from fuzz.draw import reach
from fuzz.forms import FORMS
from fuzz.reference import Reference, as_double
from fuzz.sketch import Rejected, Sketch

import ortpipe
from ortpipe.autodiff.table import RULES

LINEAR = (
    *("Add", "AveragePool", "Cast", "CastLike", "Compress", "Concat", "Conv"),
    *("ConvTranspose", "CumSum", "DepthToSpace", "Dropout", "Einsum", "Expand", "Flatten", "Gather"),
    *("GatherElements", "GatherND", "Gemm", "GlobalAveragePool", "Identity", "MatMul", "Mean", "Mul", "Neg"),
    *("OneHot", "Pad", "ReduceMean", "ReduceSum", "Reshape", "Resize"),
    *("ReverseSequence", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze", "Sub", "Sum"),
    *("Tile", "Transpose", "Trilu", "Unsqueeze", "Where"),
)
DRAWS = 2  # of each operator, with other attributes


class Whole(Sketch):
    """A sketch of small integers."""

    def numbers(self, shape):
        return self.rng.integers(-3, 4, tuple(shape)).astype(np.float64)


def drawn(kind, seed):
    s = Whole(np.random.default_rng([31, seed]), 18 + seed % 4)
    found = FORMS[kind](s)
    of = tuple([found] if isinstance(found, str) else found)
    return s, of, as_double(s.model(of, free=False))


def slopes(s, model, of, rng):
    """Return f(v) − f(0) for each source by which f is linear, in numbers that float64 holds exactly."""
    held = {**s.inputs, **s.parameters}
    inputs = {i.name for i in model.graph.input} | {t.name for t in model.graph.initializer}
    run = Reference(model).run
    fed, result = {n: a for n, a in s.inputs.items() if n in inputs}, {}
    for name in [n for n in held if n in reach(model.graph, of)]:
        v, w = (rng.integers(-3, 4, held[name].shape).astype(np.float64) for _ in range(2))
        at = [run({**fed, name: x}, of) for x in (np.zeros_like(v), v, w, v + 2 * w)]
        pushed = [b - a for a, b in zip(at[0], at[1], strict=True)]
        linear = all(((d - a) == (b - a) + 2 * (c - a)).all() for a, b, c, d in zip(*at, strict=True))
        if linear and all((1024 * y % 1 == 0).all() for y in pushed):
            result[name] = (v, pushed)
    return fed, result


@pytest.mark.parametrize("kind", LINEAR)
def test_a_linear_rule_is_the_exact_adjoint(kind):
    seen = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        try:
            s, of, model = drawn(kind, seed)
        except Rejected:
            continue
        fed, pushed = slopes(s, model, of, rng)
        if not pushed:
            continue
        graph = ortpipe.gradient(model, of, list(pushed))
        shapes = {o.name: [d.dim_value for d in o.type.tensor_type.shape.dim] for o in model.graph.output}
        u = {f"{name}_grad": rng.integers(-3, 4, shape).astype(np.float64) for name, shape in shapes.items()}
        read = {i.name for i in graph.graph.input}
        given = {n: a for n, a in {**fed, **u}.items() if n in read}
        pulled = Reference(graph).run(given, [f"{n}_grad" for n in pushed])
        for (v, ys), back in zip(pushed.values(), pulled, strict=True):
            assert sum(np.sum(y * u[f"{n}_grad"]) for n, y in zip(of, ys, strict=True)) == np.sum(v * back)
        seen += 1
        if seen == DRAWS:
            break
    assert seen


def test_what_is_called_linear_has_a_rule():
    assert [kind for kind in LINEAR if kind not in RULES] == []
