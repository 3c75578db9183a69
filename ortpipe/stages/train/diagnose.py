"""What diverged: the gradients of one step, found again after the epoch graph has run past it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ortpipe.artifact import Artifact
from ortpipe.graph import query
from ortpipe.graph.modes import with_seeds
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.step import Step, gradients_of
from ortpipe.stages.train.update import ITERATE

SHOWN = 3


@dataclass(frozen=True)
class Diagnosis:
    """Finds the gradients of a step.

    Attributes:
        artifact: the gradient model.
        config: how it is trained.
        step: the train step that was built from it.
        names: the epoch's input name of each name of the step.
        sessions: gives what loads the epoch graph anew (one that draws begins its draws again) for an epoch's number
            and a batch size.
        runtime: threads.
    """

    artifact: Artifact
    config: TrainConfig
    step: Step
    names: Mapping[str, str]
    sessions: Callable[[], Callable[[int, int], Session]]
    runtime: RuntimeConfig | None = None

    def __call__(self, number: int, size: int, feeds: Mapping[str, np.ndarray], at: int) -> dict[str, float]:
        """Return ‖g‖₂ of the loss by parameter, the largest first and before it what is not finite.

        The gradients of a model that draws are those of another draw.

        Args:
            number: of the epoch.
            size: rows per batch.
            feeds: of the run of the epoch graph that diverged.
            at: the step of that run, from 0; −1 is the last.
        """
        model = with_seeds(gradients_of(self.artifact, self.config), number)
        held = query.input_types(model)
        batch = {name: feeds[self.names[name]][at] for name in self.step.scanned if name not in self.step.scalars}
        known = {
            n: a.astype(held[n], copy=False) for n, a in {**batch, **self._before(number, size, feeds, at)}.items()
        }
        names = self.artifact.facts.gradients
        found = Session(model, self.runtime).run(known, list(names.values()))
        with np.errstate(over="ignore", invalid="ignore"):
            norms = [float(np.linalg.norm(gradient.astype(np.float64))) for gradient in found]
        pairs = zip(names, norms, strict=True)
        return dict(sorted(pairs, key=lambda pair: -np.nan_to_num(pair[1], nan=np.inf, posinf=np.inf)))

    def _before(self, number: int, size: int, feeds: Mapping[str, np.ndarray], at: int) -> dict[str, np.ndarray]:
        """Return parameters and running statistics just before the step: the same run, ended there."""
        scanned = {self.names[name] for name in self.step.scanned}
        begun = {name: array[:at] if name in scanned else array for name, array in feeds.items()}
        values = [feeds[self.names[name]] for name in self.step.carried]
        if all(len(begun[name]) for name in scanned):
            values = self.sessions()(number, size).run(begun)[:-1]
        arrays, state = self.step.unpack(dict(zip(self.step.carried, values, strict=True)))
        return {name: state.get((ITERATE, name), array) for name, array in arrays.items()}


def shown(norms: Mapping[str, float]) -> str:
    """Return the first of these norms as text.

    >>> shown({"u": float("nan"), "w": 1e30, "b": 12.5, "c": 1.0})
    'u nan, w 1e+30, b 12.5'
    """
    return ", ".join(f"{name} {norm:.6g}" for name, norm in list(norms.items())[:SHOWN])
