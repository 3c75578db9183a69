"""Checkpoints, from which a stopped training continues."""

import numpy as np

from ortpipe import own, own_code
from ortpipe.artifact import Arrays
from ortpipe.errors import ConvergenceError, TrainError
from ortpipe.hashing import digest_of
from ortpipe.stages.train.config import LOSS, EarlyStopConfig
from ortpipe.stages.train.mini_batch import EpochLoop
from ortpipe.stages.train.step import TrainStep
from ortpipe.stages.train.training import Checkpoint, EarlyStop, Losses, Training

FREE = ("epochs", "checkpoint", "early_stop", "states")  # settings that a continuation may change


def key_of(training: Training) -> str:
    """Return the key that a checkpoint and the training that continues from it must share."""
    config = training.config
    settings = {name: repr(value) for name, value in sorted(vars(config).items()) if name not in FREE}
    settings["monitor"] = config.early_stop.monitor
    if config.parallel is not None:
        settings["parallel"] = f"{config.parallel.slices} slices, every {config.parallel.every}"
    for part in map(type, (config.optimizer, config.schedule)):
        if own.is_own(part):
            settings[own.path_of(part)] = own_code.code(part)
    return digest_of("checkpoint", training.whole.digest(), training.data.digest(), settings)


def check_start(training: Training, step: TrainStep) -> None:
    """Raise TrainError if training would continue from a checkpoint of another run, or with another optimizer."""
    if isinstance(training.start, Checkpoint) and training.start.key != key_of(training):
        raise TrainError(
            "A checkpoint must belong to the same model, data and train settings.",
            got="a checkpoint of another run",
            fix=f"Repeat the command of the stopped run, with resume added ({', '.join(FREE)} may change).",
        )
    needed = (f"{folder}/{name}" for folder in step.folders for name in step.layout.shapes)
    if missing := [name for name in needed if name not in (training.before or {})]:
        raise TrainError(
            "Training must continue with the same optimizer.",
            got=f"a start without {missing[0]}",
            fix="Choose the same {@train/optimizer}, or start from the beginning.",
        )


def losses_so_far(config: EarlyStopConfig, tensors: Arrays) -> Losses:
    """Return the losses and the monitored metric stored in train's tensors."""
    train, validation = tensors["losses/train"], tensors.get("losses/validation", np.zeros(0))
    unknown = np.full(0 if config.monitor == LOSS else len(train), np.nan)
    monitor = tensors.get(f"monitor/{config.monitor}", unknown)
    runs = [tensors["losses/step"]], [tensors["losses/rate"]]
    return Losses(config, *runs, train.tolist(), validation.tolist(), monitor.tolist())


def first_epochs(losses: Losses, epochs: int, runs: int = 0) -> Losses:
    """Return the losses of the first epochs, which took `runs` runs of the epoch graph."""
    per_epoch = (values[:epochs] for values in (losses.train, losses.validation, losses.monitor))
    return Losses(losses.config, losses.step[:runs], losses.rate[:runs], *per_epoch)


def save(loop: EpochLoop, stop: EarlyStop[Arrays]) -> None:
    """Report a checkpoint of the loop, which is between two epochs."""
    best = {f"best/{name}": array for name, array in loop.step.unpack(stop.best_values).items()}
    tensors = {**loop.tensors(loop.values), **best}
    loop.training.report(Checkpoint(len(loop.losses.train), key_of(loop.training), tensors))


def save_whole_epochs(error: BaseException, loop: EpochLoop, stop: EarlyStop[Arrays]) -> None:
    """Discard the steps of an interrupted epoch, and save the epochs before it.

    A diverged training is useless for continuing: its tensors are an attribute of the error instead.
    """
    if isinstance(error, Exception) and not isinstance(error, ConvergenceError):
        return
    epochs, runs = loop.counts
    loop.values, loop.losses = loop.whole, first_epochs(loop.losses, epochs, runs)
    if isinstance(error, ConvergenceError):
        error.tensors = loop.tensors(loop.values)
    elif epochs:  # the user or the system stops it
        stop(loop.losses.watched, loop.whole)
        save(loop, stop)
