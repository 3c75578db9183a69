"""What training continues from: everything that the next epoch depends on, as named arrays."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ortpipe.artifact import Artifact, under
from ortpipe.errors import TrainError
from ortpipe.hashing import digest_of
from ortpipe.stages.train.config import LOSS, CheckpointConfig, TrainConfig
from ortpipe.stages.train.losses import Losses
from ortpipe.stages.train.step import TrainStep

FREE = ("epochs", "checkpoint", "early_stop")  # what may differ between the beginning and the continuation
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Checkpoint:
    """The state after an epoch.

    Attributes:
        epochs: how many are done.
        key: of the gradient model, the data and the config: sha256, hex.
        tensors: train's, and `best/…` of those that would be kept if it stopped early now.
    """

    epochs: int
    key: str
    tensors: Arrays


class Due:
    """Says after each epoch whether a checkpoint is due, by epochs or by the clock; results do not depend on it."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._config, self._last = config, time.monotonic()

    def __call__(self, epoch: int) -> bool:
        """Take an epoch's number."""
        now, every, minutes = time.monotonic(), self._config.epochs, self._config.minutes
        due = (every is not None and epoch % every == 0) or (minutes is not None and now - self._last >= 60 * minutes)
        self._last = now if due else self._last
        return due


def key_of(artifact: Artifact, config: TrainConfig, data: str) -> str:
    """Return what a checkpoint must share with the training that continues from it."""
    settings = {k: repr(v) for k, v in sorted(vars(config).items()) if k not in FREE}
    settings["monitor"] = config.early_stop.monitor
    return digest_of("checkpoint", artifact.digest(), data, settings)


def check_key(start: Checkpoint, key: str) -> None:
    """Refuse a checkpoint of another model, other data or other settings."""
    if start.key != key:
        raise TrainError(
            "Training continues from a checkpoint of the same model, data and train settings.",
            got="a checkpoint of another run",
            fix=f"Repeat the command of the stopped run, with resume added ({', '.join(FREE)} may change).",
        )


def tensors_of(step: TrainStep, values: Arrays) -> dict[str, np.ndarray]:
    """Return carried values under the names of train's tensors."""
    folders = step.unpack(values)
    return {f"{folder}/{name}": array for folder, arrays in folders.items() for name, array in arrays.items()}


def values_of(step: TrainStep, tensors: Arrays) -> dict[str, np.ndarray]:
    """Return what is carried, of train's tensors.

    Raises:
        TrainError: they are those of another optimizer.
    """
    folders = {folder: under(folder, tensors) for folder in step.folders}
    for folder, arrays in folders.items():
        if missing := [name for name in step.layout.shapes if name not in arrays]:
            raise TrainError(
                "Training continues with the optimizer that it began with.",
                got=f"a start without {folder}/{missing[0]}",
                fix="Choose the same train/optimizer, or start anew.",
            )
    return step.pack(folders)


def losses_of(tensors: Arrays, monitor: str) -> Losses:
    """Return every loss so far, and what is known of the metric that is watched."""
    train, validation = tensors["losses/train"].tolist(), tensors.get("losses/validation", np.zeros(0)).tolist()
    watched = {} if monitor == LOSS else {monitor: tensors.get(f"monitor/{monitor}", np.full(len(train), np.nan))}
    values = {name: array.tolist() for name, array in watched.items()}
    return Losses([tensors["losses/step"]], [tensors["losses/rate"]], train, validation, values)
