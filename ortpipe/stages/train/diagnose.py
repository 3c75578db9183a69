"""What diverged: the gradients of one step, computed again after the epoch graph has run past it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ortpipe.graph.check import finish
from ortpipe.graph.modes import set_seeds
from ortpipe.runtime.session import Session
from ortpipe.stages.train.epoch import EpochGraph
from ortpipe.stages.train.step import ITERATE, PARAMETER, TrainStep, gradients_of, input_types
from ortpipe.stages.train.training import Training

SHOWN = 3
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Run:
    """One run of the epoch graph: the number of its epoch, the rows per batch, its feeds."""

    number: int
    size: int
    feeds: Arrays


def gradient_norms(
    training: Training, step: TrainStep, epoch: EpochGraph, load: Callable[[int, int], Session], run: Run, at: int
) -> dict[str, float]:
    """Return ‖g‖₂ of the loss by parameter, the largest first and before it what is not finite.

    The gradients of a model that draws are those of another draw.

    Args:
        training, step, epoch: what diverged.
        load: loads the epoch graph anew (one that draws begins its draws again) for an epoch and a batch size.
        run: that diverged.
        at: its step, from 0; −1 is the last.
    """
    model = gradients_of(training.artifact, training.config)
    set_seeds(model, run.number)
    types = input_types(model)
    names = training.artifact.facts.gradients
    batch = {name: run.feeds[epoch.names[name]][at] for name in step.batch}
    feeds = {n: a.astype(types[n], copy=False) for n, a in {**batch, **_before(step, epoch, load, run, at)}.items()}
    gradients = Session(finish(model), training.runtime).run(feeds, list(names.values()))
    with np.errstate(over="ignore", invalid="ignore"):
        norms = [float(np.linalg.norm(gradient.astype(np.float64))) for gradient in gradients]
    pairs = zip(names, norms, strict=True)
    return dict(sorted(pairs, key=lambda pair: -np.nan_to_num(pair[1], nan=np.inf, posinf=np.inf)))


def _before(step: TrainStep, epoch: EpochGraph, load: Callable[[int, int], Session], run: Run, at: int) -> Arrays:
    """Return parameters and running statistics just before the step: the same run, ended there."""
    scanned = {epoch.names[name] for name in step.scanned}
    begun = {name: array[:at] if name in scanned else array for name, array in run.feeds.items()}
    values = [run.feeds[epoch.names[name]] for name in step.carried]
    if all(len(begun[name]) for name in scanned):
        values = load(run.number, run.size).run(begun)[:-1]
    folders = step.unpack(dict(zip(step.carried, values, strict=True)))
    return {**folders[PARAMETER], **folders.get(ITERATE, {})}


def shown(norms: Mapping[str, float]) -> str:
    """Return the first of these norms as text.

    >>> shown({"u": float("nan"), "w": 1e30, "b": 12.5, "c": 1.0})
    'u nan, w 1e+30, b 12.5'
    """
    return ", ".join(f"{name} {norm:.6g}" for name, norm in list(norms.items())[:SHOWN])
