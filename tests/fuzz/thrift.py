"""The gradients of a graph whose backward pass computes forward values again, beside those of one that keeps them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fuzz.draw import Case
from fuzz.reference import distance
from ortpipe.artifact import Artifact, Facts
from ortpipe.errors import OrtpipeError
from ortpipe.graph.core.check import checked
from ortpipe.graph.importing.lower import lowered
from ortpipe.runtime.session import Session
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive

PARTS = 3


def apart(case: Case) -> float | None:
    """Return how far the gradients are apart at most; None where derive has none.

    Segments end behind every third of the forward values.
    """
    try:
        model = checked(lowered(case.model))
        names = [str(name) for node in model.graph.node for name in node.output if name]
        fed, held = [i.name for i in model.graph.input], [t.name for t in model.graph.initializer]
        facts = Facts("regression", tuple(fed), case.of, case.of[0], tuple(n for n in case.wrt if n in held))
        plain, thrifty = (
            derive(
                Artifact(model, facts),
                DeriveConfig(
                    output=case.of,
                    inputs=tuple(n for n in case.wrt if n in fed),
                    fill_gradient=True,
                    checkpointing=marks,
                    forward_outputs=False,
                ),
            )
            for marks in (None, tuple(names[len(names) // PARTS :: max(1, len(names) // PARTS)]))
        )
        wanted = _run(plain, case.feeds)
    except OrtpipeError:
        return None
    if not all(np.isfinite(array).all() for array in wanted.values()):
        return None
    try:
        found = _run(thrifty, case.feeds)
    except OrtpipeError:
        return np.inf
    errors = [distance(found[name], array) for name, array in wanted.items()]
    return float(np.max(errors, initial=0))  # nan where one is


def _run(derived: Artifact, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    gradients = {**derived.facts.gradients, **derived.facts.input_gradients}
    read = {i.name for i in derived.model.graph.input}
    arrays = Session(derived.model).run({n: a for n, a in feeds.items() if n in read}, list(gradients.values()))
    return dict(zip(gradients, arrays, strict=True))
