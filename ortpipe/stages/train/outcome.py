"""The outcome of training: adapted weights, the epoch that early stopping kept, and notes on suspicious results."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Arrays, Artifact, in_folder
from ortpipe.graph.forms.adapters import Adapter, merged, without_adapters
from ortpipe.stages.train.config import LOSS, EarlyStopConfig, TrainConfig
from ortpipe.stages.train.training import EarlyStop, Training


@dataclass(frozen=True)
class Kept:
    """The epoch whose weights early stopping kept."""

    epoch: int  # its number, from 1
    value: float  # the monitored value of that epoch
    epochs: int  # the number of epochs that ran
    over: bool  # whether patience was exhausted


def outcome_of(training: Training, tensors: Arrays, *, still: bool) -> tuple[list[str], dict[str, Any]]:
    """Return notes, and entries of the lineage record; `still`: the loss of all epochs is equal."""
    artifact, config, data = training.whole, training.config, training.data
    notes, record = list[str | None](), dict[str, Any]()
    if (best := kept_epoch(tensors, config.early_stop)) is not None:
        notes.append(kept_note(best, config, validated=data.validation is not None, weighted=data.weighted))
        record["early_stop"] = dataclasses.asdict(best)
    notes.append(still_note(tensors) if still else None)
    notes.append(rounding_note(tensors, {name: artifact.initializers[name].dtype for name in artifact.facts.gradients}))
    return [note for note in notes if note], record


def kept_epoch(tensors: Arrays, config: EarlyStopConfig) -> Kept | None:
    """Return the epoch whose weights a training with these losses kept; None without patience."""
    if config.patience is None:
        return None
    train, validation = tensors["losses/train"], tensors.get("losses/validation")
    watched = train if validation is None else tensors.get(f"monitor/{config.monitor}", validation)
    [evaluated], stop = np.nonzero(~np.isnan(watched)), EarlyStop(config, None)
    stop((config.sign * watched[evaluated]).tolist(), None)
    epoch = len(train) if validation is None else int(evaluated[stop.best]) + 1
    return Kept(epoch, float(watched[epoch - 1]), len(train), stop.over)


def kept_note(epoch_kept: Kept, config: TrainConfig, *, validated: bool, weighted: bool) -> str:
    """Return the outcome of early stopping as a sentence; mention validation rows and row weights."""
    stop = config.early_stop
    kind = f"{stop.monitor}{' (weighted)' if weighted else ''}" if stop.monitor != LOSS else LOSS
    watched, turns = (f"validation {kind}", "validation") if validated else ("training loss", "epoch")
    done = f"{epoch_kept.epochs} of {config.epochs}"
    much = f" by more than {stop.min_delta:g}" if stop.min_delta else ""
    if epoch_kept.over and epoch_kept.epochs < config.epochs:
        turns = f"{stop.patience} {turns}{'s' if stop.patience != 1 else ''}"
        outcome = f"stopped after epoch {done}: {watched} did not improve{much} for {turns}"
    else:
        outcome = f"not stopped early: {done} epochs ran"
    last = "" if validated else " (the last: without validation rows none is restored)"
    return f"{outcome}; kept epoch {epoch_kept.epoch}, {watched} {epoch_kept.value:.4g}{last}"


def trained_loss(tensors: Arrays, config: EarlyStopConfig) -> float:
    """Return the loss of the trained weights: on validation rows if there are any, else in training.

    It is the last epoch's loss or, with early stopping, that of the epoch whose weights were kept.
    """
    losses, epoch_kept = tensors.get("losses/validation", tensors["losses/train"]), kept_epoch(tensors, config)
    return float(losses[-1 if epoch_kept is None else epoch_kept.epoch - 1])


def still_note(tensors: Arrays) -> str | None:
    """Return the note on a loss that did not change, from train's tensors.

    A single epoch has no other loss to compare, so return None if its weights changed.
    """
    losses, steps = tensors["losses/train"], len(tensors["losses/step"])
    after = in_folder("parameter", tensors)
    moves = (np.abs(a.astype(np.float64) - tensors[f"initial/{name}"]).max(initial=0.0) for name, a in after.items())
    change = float(max(moves, default=0.0))
    if len(losses) < 2 and change > 0:
        return None
    weights = f"no weight changed by more than {change:.3g}" if change else "no weight changed"
    return (
        f"the loss did not change: from {losses[0]:.6g} to {losses[-1]:.6g} in {steps} steps, and {weights}; unless it "
        "started at its optimum, check the meaning of the prediction (convert.source.task, convert.source.scores), "
        "the learning rate, and whether gradients reach the weights (derive.check=true)"
    )


def rounding_note(tensors: Arrays, kinds: Mapping[str, np.dtype]) -> str | None:
    """Return a note if a float16 or bfloat16 model rounds away the result of training, else None.

    Args:
        tensors: train's tensors, with float32 weights.
        kinds: parameter → its type in the model.
    """
    names = " and ".join(sorted({kind.name for kind in kinds.values() if kind.itemsize == 2}))
    moved = lost = 0
    for name, after in in_folder("parameter", tensors).items() if names else ():
        before, kind = tensors[f"initial/{name}"], kinds.get(name, after.dtype)
        change = after != before
        moved += int(change.sum())
        lost += int((change & (after.astype(kind) == before.astype(kind))).sum())
    if not names or 2 * lost <= moved:
        return None
    return (
        f"the model's {names} rounds {lost} of {moved} trained weights back to their initial values: train "
        "longer or at a higher rate, or write the model in float32 (convert.source.dtype=float32)"
    )


def merge_adapters(artifact: Artifact, forward: ir.Model, tensors: Arrays) -> dict[str, np.ndarray]:
    """Remove the adapters from a forward model; return the initial and final values of the weights they adapt.

    `tensors` are train's, with the factors of the adapters.
    """
    adapters = {name: Adapter(**fact) for name, fact in artifact.facts.adapters.items()}
    without_adapters(forward, adapters)
    weights = artifact.initializers
    trained = {**weights, **in_folder("parameter", tensors)}  # some have no gradient
    return {f"initial/{name}": weights[name] for name in adapters} | {
        f"parameter/{name}": merged(weights[name], trained[left_factor], trained[right_factor], scale)
        for name, (left_factor, right_factor, scale) in adapters.items()
    }
