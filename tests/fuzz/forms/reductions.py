"""Reductions, and the losses that end in one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fuzz.sketch import Sketch

PLAIN = ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum")
KINDS = (*PLAIN, "ReduceSumSquare", "ReduceProd", "ReduceLogSum")


def reduced(kind: str) -> Callable[[Sketch], str]:
    """Return the form of a reduction: over some axes, all or none, which are attributes or inputs by the opset."""

    def form(s: Sketch) -> str:
        x = s.x(least=0 if s.flag(0.05) else 1)
        if kind == "ReduceLogSum":
            x = s.positive(x)
        rank, given = s.rank(x), {"keepdims": int(s.flag())} if s.flag(0.8) else {}
        axes = None
        if rank and s.flag(0.85):
            axes = [int(a) - (rank if s.flag() else 0) for a in s.rng.permutation(rank)[: s.size(1, rank)]]
        if s.opset >= (13 if kind == "ReduceSum" else 18):
            if axes is None and s.flag(0.3):
                given["noop_with_empty_axes"] = 1
            return s.op(kind, [x, s.const(axes) if axes is not None else None], **given)
        return s.op(kind, [x], **given, **({"axes": axes} if axes is not None else {}))

    return form


def loss(kind: str) -> Callable[[Sketch], str | list[str]]:
    """Return the form of a loss over labels, of scores [N, C, …]."""

    def form(s: Sketch) -> str | list[str]:
        x = s.x(least=2)
        n, classes, *rest = s.of(x)
        labels = s.rng.integers(0, classes, [n, *rest])
        given = {"reduction": s.choose(["none", "sum", "mean"])} if s.flag(0.8) else {}
        if s.flag(0.3):
            given["ignore_index"] = s.choose([0, -100])
            if given["ignore_index"] == -100:
                labels[s.rng.random(labels.shape) < 0.3] = -100
        labels.flat[0] = classes - 1
        if classes == 1:
            given.pop("ignore_index", None)
            labels[:] = 0
        weight = s.const(s.rng.uniform(0.5, 1.5, classes).astype(np.float32), np.float64) if s.flag(0.4) else None
        if kind == "NegativeLogLikelihoodLoss":
            x = s.op("LogSoftmax", [x], axis=1)
        several = kind == "SoftmaxCrossEntropyLoss" and s.flag(0.3)
        return s.op(kind, [x, s.const(labels), weight], 2 if several else 1, **given)

    return form


FORMS = {
    **{kind: reduced(kind) for kind in KINDS},
    **{kind: loss(kind) for kind in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")},
}
