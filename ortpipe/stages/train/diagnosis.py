"""Errors for training that diverges, and for labels that do not fit the elements of a prediction."""

import functools
from collections.abc import Callable, Mapping

import numpy as np

from ortpipe.artifact import Arrays, Artifact, in_folder
from ortpipe.data.feeds import feed_inputs, feed_label
from ortpipe.data.rows import Data
from ortpipe.errors import ConvergenceError, DataError
from ortpipe.graph.core.check import finish
from ortpipe.graph.forms.modes import set_seeds
from ortpipe.runtime.session import Session
from ortpipe.stages.train.config import ClipConfig
from ortpipe.stages.train.epoch_graph import Runs, loader
from ortpipe.stages.train.mini_batch import EpochLoop
from ortpipe.stages.train.step import ITERATE, PARAMETER, TrainStep, build_step, gradients_of
from ortpipe.stages.train.training import Training
from ortpipe.stages.train.validation import input_types

SHOWN = 3  # the largest gradients that a message names


def diverged_step(loop: EpochLoop, losses: np.ndarray, used: np.ndarray) -> ConvergenceError:
    """Return the error for the first loss of the latest run that is not finite; `used` are the run's rates."""
    bad = int(np.argmin(np.isfinite(losses)))
    last = np.concatenate([*loop.losses.step, losses[:bad]])
    return diverged(loop, f"loss {losses[bad]} at step {loop.done + bad + 1}", last, float(used[bad]), bad)


def diverged_epoch(loop: EpochLoop, metrics: Mapping[str, float] | None) -> ConvergenceError:
    """Return the error for a validation result, or else a parameter, that is not finite after an epoch."""
    step, losses = f"after step {loop.done}", loop.losses
    for name, value in (metrics or {}).items():
        if not np.isfinite(value):
            last = np.array(losses.validation)
            return diverged(loop, f"validation {name} {value} {step}", last[~np.isnan(last)])
    tensors = loop.step.unpack(loop.values).items()
    name = next(name for name, array in tensors if not np.isfinite(array).all())
    return diverged(loop, f"{name.removeprefix('parameter/')} is not finite {step}", losses.step[-1])


def diverged(loop: EpochLoop, what: str, last: np.ndarray, rate: float | None = None, at: int = -1) -> ConvergenceError:
    """Return the error for a value that is not finite, with that step's gradients if this process computes them."""
    config, facts, parts = loop.training.config, loop.training.artifact.facts, [what]
    if rate is None and loop.losses.rate:
        rate = float(loop.losses.rate[-1][-1])
    if rate is not None:
        parts.append(f"learning rate {rate:g}")
    if config.parallel is None:
        number, size, run = loop.latest
        load = functools.partial(loader(loop.training, build_step(loop.training.artifact, config)), number, size)
        parts.append(f"largest gradient norms {largest_gradients(loop.training, loop.step, load, run, at)}")
    parts.append(f"last finite losses {', '.join(f'{loss:.6g}' for loss in last[-5:]) or 'none'}")
    ways = [f"Lower the rate ({{at}}optimizer.lr={config.optimizer.lr / 10:g})", "scale the inputs"]
    ways += ["clip gradients ({at}clip.norm=1)"] if config.clip == ClipConfig() else []
    ways += ["use {@add_loss.reduction}=mean"] if facts.reduction == "sum" else []
    if facts.blank is not None:
        ways += ["ignore labels that are longer than the steps allow ({@add_loss.loss.zero_infinity}=true)"]
    return ConvergenceError(
        "Losses and parameters must stay finite; nothing was published.",
        got="; ".join(parts),
        fix=f"{', '.join(ways[:-1])}, or {ways[-1]}.",
    )


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
    arrays = {
        **{name: run[name][at] for name in step.batch},
        **in_folder(PARAMETER, tensors),
        **in_folder(ITERATE, tensors),
    }
    model, names = gradients_of(training.artifact, training.config), training.artifact.facts.gradients
    set_seeds(model, 1)
    types = input_types(model)
    feeds = {name: array.astype(types[name], copy=False) for name, array in arrays.items()}
    gradients = Session(model, training.runtime).run(feeds, list(names.values()))
    with np.errstate(over="ignore", invalid="ignore"):
        norms = {n: np.linalg.norm(g.astype(np.float64)) for n, g in zip(names, gradients, strict=True)}
    largest = sorted(norms, key=lambda name: -np.nan_to_num(norms[name], nan=np.inf, posinf=np.inf))
    return ", ".join(f"{name} {norms[name]:.6g}" for name in largest[:SHOWN])


def check_elements(artifact: Artifact, data: Data) -> None:
    """Reject labels whose sizes differ from those of the prediction's elements, if only a run reveals these."""
    row = data.train.head(1)
    for head, head_facts in artifact.facts.predictions.items():
        if head_facts.label is None or head_facts.blank is not None:
            continue
        model = finish(artifact.ir_model([head_facts.prediction]))
        shape = Session(model).run(feed_inputs(model, head_facts, row), [head_facts.prediction])[0].shape
        axis = len(shape) - 1 if head_facts.class_axis is None else head_facts.class_axis
        elements = tuple(size for i, size in enumerate(shape) if i not in (0, axis))
        label = feed_label(artifact.model, head_facts, row.of(head)).shape[1 : 1 + len(elements)]
        if elements != label:
            raise DataError(
                "A label needs one entry for each element of the prediction.",
                got=f"{head_facts.label!r}: {list(label)} in the first row, for {list(elements)} that "
                f"{head_facts.prediction!r} has",
                fix="Crop or pad the labels to the elements of the model's prediction; padding counts "
                "nothing with {@add_loss.padding}.",
            )
