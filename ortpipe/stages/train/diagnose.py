"""What diverged: the gradients of one step, computed again after the epoch graph has run past it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ortpipe.artifact import Arrays, under
from ortpipe.graph.check import finish
from ortpipe.graph.modes import set_seeds
from ortpipe.runtime.session import Session
from ortpipe.stages.train.epoch import EpochGraph
from ortpipe.stages.train.step import ITERATE, PARAMETER, TrainStep, gradients_of, input_types
from ortpipe.stages.train.training import Training


@dataclass(frozen=True)
class Run:
    """One run of the epoch graph."""

    number: int  # of its epoch
    size: int  # rows per batch
    feeds: Arrays


def gradient_norms(
    training: Training, step: TrainStep, epoch: EpochGraph, load: Callable[[int, int], Session], run: Run, at: int
) -> dict[str, float]:
    """Return ‖g‖₂ of the loss by parameter, the largest first and before it what is not finite, at a run's step.

    The step is counted from 0; −1 is the last. The epoch graph is loaded anew: one that draws begins its draws again.
    The gradients of a model that draws are those of another draw.
    """
    scanned = {epoch.names[name] for name in step.scanned}
    begun = {name: array[:at] if name in scanned else array for name, array in run.feeds.items()}
    values = [run.feeds[epoch.names[name]] for name in step.carried]
    if all(len(begun[name]) for name in scanned):  # the same run, ended just before the step
        values = load(run.number, run.size).run(begun)[:-1]
    tensors = step.unpack(dict(zip(step.carried, values, strict=True)))
    batch = {name: run.feeds[epoch.names[name]][at] for name in step.batch}
    model, names = gradients_of(training.artifact, training.config), training.artifact.facts.gradients
    set_seeds(model, run.number)
    types = input_types(model)
    given = {**batch, **under(PARAMETER, tensors), **under(ITERATE, tensors)}
    feeds = {name: array.astype(types[name], copy=False) for name, array in given.items()}
    gradients = Session(finish(model), training.runtime).run(feeds, list(names.values()))
    with np.errstate(over="ignore", invalid="ignore"):
        norms = [float(np.linalg.norm(gradient.astype(np.float64))) for gradient in gradients]
    pairs = zip(names, norms, strict=True)
    return dict(sorted(pairs, key=lambda pair: -np.nan_to_num(pair[1], nan=np.inf, posinf=np.inf)))


def shown(norms: Mapping[str, float]) -> str:
    """Return the first three of these norms as text.

    >>> shown({"u": float("nan"), "w": 1e30, "b": 12.5, "c": 1.0})
    'u nan, w 1e+30, b 12.5'
    """
    return ", ".join(f"{name} {norm:.6g}" for name, norm in [*norms.items()][:3])
