"""What training continues from: everything that the next epoch depends on, as named arrays."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ortpipe.artifact import Artifact
from ortpipe.errors import TrainError
from ortpipe.stages.train.config import LOSS, TrainConfig
from ortpipe.stages.train.loop import Loop
from ortpipe.stages.train.losses import Losses
from ortpipe.stages.train.step import Step

FREE = ("epochs", "checkpoint", "early_stop")  # what may differ between the beginning and the continuation


@dataclass(frozen=True)
class Checkpoint:
    """The state after an epoch.

    Attributes:
        epochs: how many are done.
        key: of the gradient model, the data and the config: sha256, hex.
        tensors: `parameter/…`, `initial/…` and `best/…` by parameter, `optimizer/…` by slot and parameter, `losses/…`,
            `monitor/…`.
    """

    epochs: int
    key: str
    tensors: Mapping[str, np.ndarray]


def key_of(artifact: Artifact, config: TrainConfig, data: str) -> str:
    """Return what a checkpoint must share with the training that continues from it."""
    settings = {k: repr(v) for k, v in sorted(vars(config).items()) if k not in FREE}
    settings["monitor"] = config.early_stop.monitor
    return hashlib.sha256(json.dumps([artifact.digest(), data, settings]).encode()).hexdigest()


def check_key(start: Checkpoint, key: str) -> None:
    """Refuse a checkpoint of another model, other data or other settings."""
    if start.key != key:
        raise TrainError(
            "Training continues from a checkpoint of the same model, data and train settings.",
            got="a checkpoint of another run",
            fix=f"Repeat the command of the stopped run, with resume added ({', '.join(FREE)} may change).",
        )


def values_of(step: Step, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return these carried values by parameter, and by slot and parameter."""
    arrays, slots = step.unpack(values)
    return {
        **{f"parameter/{name}": array for name, array in arrays.items()},
        **{f"optimizer/{slot}/{name}": array for (slot, name), array in slots.items()},
    }


def tensors_of(
    loop: Loop, step: Step, initial: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return these carried values, what training began with, and every loss so far."""
    return {
        **{f"initial/{name}": array for name, array in initial.items()},
        **values_of(step, values),
        "losses/step": np.concatenate(loop.losses.step),
        "losses/rate": np.concatenate(loop.losses.rate),
        **loop.losses.tensors(),
    }


def state_of(tensors: Mapping[str, np.ndarray], step: Step) -> dict[tuple[str, str], np.ndarray]:
    """Return the optimizer's state by slot and parameter.

    Raises:
        TrainError: it is that of another optimizer.
    """
    for slot, name in step.slots:
        if f"optimizer/{slot}/{name}" not in tensors:
            raise TrainError(
                "Training continues with the optimizer that it began with.",
                got=f"a start without optimizer/{slot}/{name}",
                fix="Choose the same train/optimizer, or start anew.",
            )
    return {(slot, name): tensors[f"optimizer/{slot}/{name}"] for slot, name in step.slots}


def losses_of(tensors: Mapping[str, np.ndarray], monitor: str) -> Losses:
    """Return every loss so far, and what is known of the metric that is watched."""
    train, validation = tensors["losses/train"].tolist(), tensors.get("losses/validation", np.zeros(0)).tolist()
    watched = {} if monitor == LOSS else {monitor: tensors.get(f"monitor/{monitor}", np.full(len(train), np.nan))}
    found = {name: values.tolist() for name, values in watched.items()}
    return Losses([tensors["losses/step"]], [tensors["losses/rate"]], train, validation, found)
