"""Diagnose divergence: compute the gradients of one step again after the epoch graph has run past it."""

from collections.abc import Callable

import numpy as np

from ortpipe.artifact import Arrays, under
from ortpipe.graph.forms.modes import set_seeds
from ortpipe.runtime.session import Session
from ortpipe.stages.train.load import Runs
from ortpipe.stages.train.step import ITERATE, PARAMETER, TrainStep, gradients_of, input_types
from ortpipe.stages.train.training import Training

SHOWN = 3


def largest_gradients(training: Training, step: TrainStep, load: Callable[[], Runs], run: Arrays, at: int) -> str:
    """Return the largest ‖g‖₂ of the loss by parameter, as text, at a step (from 0, −1 is the last) of a run.

    Gradients that are not finite come first. `load` returns a new epoch graph; one with random draws restarts them. The
    gradients of a model with random draws belong to other draws than the run's.
    """
    begun = {name: array[:at] if name in step.scanned else array for name, array in run.items()}
    values = [run[name] for name in step.carried]
    if all(len(begun[name]) for name in step.scanned):  # repeat the run up to the step
        values = load().run(begun)[: len(values)]
    tensors = step.unpack(dict(zip(step.carried, values, strict=True)))
    arrays = {**{name: run[name][at] for name in step.batch}, **under(PARAMETER, tensors), **under(ITERATE, tensors)}
    model, names = gradients_of(training.artifact, training.config), training.artifact.facts.gradients
    set_seeds(model, 1)
    types = input_types(model)
    feeds = {name: array.astype(types[name], copy=False) for name, array in arrays.items()}
    gradients = Session(model, training.runtime).run(feeds, list(names.values()))
    with np.errstate(over="ignore", invalid="ignore"):
        norms = {n: np.linalg.norm(g.astype(np.float64)) for n, g in zip(names, gradients, strict=True)}
    largest = sorted(norms, key=lambda name: -np.nan_to_num(norms[name], nan=np.inf, posinf=np.inf))
    return ", ".join(f"{name} {norms[name]:.6g}" for name in largest[:SHOWN])
