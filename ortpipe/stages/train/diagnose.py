"""What diverged: the gradients of one step, found again after the epoch graph has run past it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from ortpipe.artifact import Artifact
from ortpipe.graph.compose import extract
from ortpipe.graph.modes import with_seeds
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.stages.train.step import Step

SHOWN = 3


@dataclass(frozen=True)
class Diagnosis:
    """Finds the gradients of a step.

    Attributes:
        artifact: the gradient model.
        step: the train step that was built from it.
        names: the epoch's input name of each name of the step.
        sessions: gives what loads the epoch graph anew (one that draws begins its draws again) for an epoch's number
            and a batch size.
        runtime: threads.
    """

    artifact: Artifact
    step: Step
    names: Mapping[str, str]
    sessions: Callable[[], Callable[[int, int], Session]]
    runtime: RuntimeConfig | None = None

    def __call__(self, number: int, feeds: Mapping[str, np.ndarray], at: int) -> dict[str, float]:
        """Return ‖g‖₂ of the loss by parameter, as in step `at` (from 0) of this run of an epoch: the largest first.

        Those that are not finite come before all. The gradients of a model that draws are those of another draw, those
        of accumulated batches that of all their rows.
        """
        facts = self.artifact.facts
        batch = {name: feeds[self.names[name]][at] for name in self.step.scanned if name not in self.step.scalars}
        size = next(iter(batch.values())).shape[int(self.step.accumulates)]
        parameters = self.step.weights(self._before(number, feeds, at, size))
        if self.step.accumulates:
            batch = {name: array.reshape(-1, *array.shape[2:]) for name, array in batch.items()}
        model = with_seeds(extract(self.artifact.model, list(facts.gradients.values())), number)
        taken = {i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in model.graph.input}
        known = {name: array.astype(taken[name]) for name, array in {**batch, **parameters}.items() if name in taken}
        with np.errstate(over="ignore", invalid="ignore"):
            found = Session(model, self.runtime).run(known, list(facts.gradients.values()))
            norms = [float(np.linalg.norm(gradient.astype(np.float64))) for gradient in found]
        pairs = zip(facts.gradients, norms, strict=True)
        return dict(sorted(pairs, key=lambda pair: -np.nan_to_num(pair[1], nan=np.inf, posinf=np.inf)))

    def _before(self, number: int, feeds: Mapping[str, np.ndarray], at: int, size: int) -> Mapping[str, np.ndarray]:
        """Return the carried values just before the step: the same run, ended there."""
        if not at:
            return {name: feeds[self.names[name]] for name in self.step.carried}
        scanned = {self.names[name] for name in self.step.scanned}
        begun = {name: array[:at] if name in scanned else array for name, array in feeds.items()}
        *carried, _ = self.sessions()(number, size).run(begun)
        return dict(zip(self.step.carried, carried, strict=True))


def shown(norms: Mapping[str, float]) -> str:
    """Return the first of these norms as text.

    >>> shown({"u": float("nan"), "w": 1e30, "b": 12.5, "c": 1.0})
    'u nan, w 1e+30, b 12.5'
    """
    return ", ".join(f"{name} {norm:.6g}" for name, norm in list(norms.items())[:SHOWN])
