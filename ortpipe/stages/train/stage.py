"""train: a gradient model and rows → a trained model, its state and its losses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe.artifact import Artifact, Facts
from ortpipe.data.feeds import class_index, feeds
from ortpipe.data.rows import Data
from ortpipe.errors import TrainError
from ortpipe.graph.compose import extract, with_parameters
from ortpipe.graph.modes import draws, for_inference, with_seeds
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.epoch import build_epoch, with_batch_size
from ortpipe.stages.train.initial import random_parameters
from ortpipe.stages.train.loop import Loop, Losses
from ortpipe.stages.train.step import build_step

VERSION = 1


def train(
    artifact: Artifact,
    config: TrainConfig | None = None,
    *,
    data: Data,
    runtime: RuntimeConfig | None = None,
    report: Callable[[object], None] = lambda event: None,
    start: Mapping[str, np.ndarray] | None = None,
) -> Artifact:
    """Return the forward model with trained weights.

    Args:
        artifact: a gradient model with its forward outputs.
        config: optimizer, schedule, epochs, …
        data: training rows, and validation rows if there are any.
        runtime: threads.
        report: called with an `Epoch` after each epoch.
        start: the tensors of an earlier result, which `config.epochs` more epochs continue from; m epochs and n more
            give the tensors of m + n at once (but for a schedule that counts to the end of training).

    Returns:
        An artifact whose tensors are `parameter/…` and `initial/…` by parameter (and running statistic),
        `optimizer/…` by slot and parameter, and the losses:
        `losses/step` and `losses/rate` [steps], `losses/train` and `losses/validation` [epochs] (per row).
        The same artifact, config and data give the same bytes.

    Raises:
        ConvergenceError: the loss became nan or infinite.
        DataError: the rows do not fit the model.
        TrainError: the model has no gradients or forward outputs.
    """
    config = config or TrainConfig()
    facts = artifact.facts
    if not facts.gradients or not facts.outputs:
        raise TrainError(
            "train needs a gradient model with its forward outputs.",
            got=f"{len(facts.gradients)} gradients, {len(facts.outputs)} forward outputs",
            fix="Run derive first, with derive.forward_outputs=true.",
        )
    rows = feeds(artifact.model, facts, data.train)
    initial = _initial(artifact, config) if start is None else _under("initial", start)
    parameters = initial if start is None else _under("parameter", start)
    step = build_step(artifact, config.optimizer)
    state = {
        (slot, name): np.zeros_like(parameters[name]) if start is None else _found(start, f"optimizer/{slot}/{name}")
        for slot, name in step.slots
    }
    epoch, names = build_epoch(step)
    rows = {name: array for name, array in rows.items() if name in step.scanned}
    sessions = _sessions(epoch, config.seed, runtime)
    losses = None if start is None else _losses(start)
    carried = step.pack(parameters, state)
    loop = Loop(sessions, step, names, carried, rows, config, facts.reduction or "mean", losses)
    best, waited, best_values = np.inf, 0, loop.values
    for result in loop.run(_validation(artifact, data, runtime)):
        report(result)
        monitored = result.loss if result.validation is None else result.validation
        if monitored < best - config.early_stop.min_delta:
            best, waited, best_values = monitored, 0, loop.values
        else:
            waited += 1
        if config.early_stop.patience is not None and waited >= config.early_stop.patience:
            break
    restore = config.early_stop.patience is not None and data.validation is not None
    values = best_values if restore else loop.values
    trained, slots = step.unpack(values)
    return artifact.next(
        "train",
        VERSION,
        model=for_inference(with_parameters(extract(artifact.model, facts.outputs), trained)),
        tensors={
            **{k: v for k, v in artifact.tensors.items() if k.startswith("source/")},
            **{f"initial/{name}": array for name, array in initial.items()},
            **{f"parameter/{name}": array for name, array in trained.items()},
            **{f"optimizer/{slot}/{name}": array for (slot, name), array in slots.items()},
            "losses/step": np.concatenate(loop.losses.step),
            "losses/rate": np.concatenate(loop.losses.rate),
            "losses/train": np.array(loop.losses.train),
            **({"losses/validation": np.array(loop.losses.validation)} if loop.losses.validation else {}),
        },
        loss=None,
        label=None,
        sample_weight=None,
        gradients={},
        input_gradients={},
        statistics={},
    )


def check(
    facts: Facts,
    config: TrainConfig,
    *,
    data: Data,
    runtime: RuntimeConfig | None = None,
    report: Callable[[object], None] | None = None,
) -> None:
    """Refuse labels that are no class of the model, in any part of the data."""
    for part in (data.train, data.validation, data.test):
        if part is not None and facts.classes is not None:
            class_index(facts, part)


def _sessions(epoch: onnx.ModelProto, seed: int, runtime: RuntimeConfig | None) -> Callable[[int, int], Session]:
    """Return what loads the epoch graph for an epoch's number and a batch size.

    One that draws (dropout) is loaded anew for each epoch, with seeds of that epoch: its draws follow from the
    config's seed and the epoch's number alone.
    """
    if not draws(epoch):
        load = functools.cache(lambda size: Session(with_batch_size(epoch, size), runtime))
        return lambda number, size: load(size)

    @functools.lru_cache(maxsize=2)  # whole batches, and the partial one
    def load_epoch(number: int, size: int) -> Session:
        [first] = np.random.default_rng([seed, number, size]).integers(1, 2**24, 1)
        return Session(with_batch_size(with_seeds(epoch, int(first)), size), runtime)

    return load_epoch


def _initial(artifact: Artifact, config: TrainConfig) -> dict[str, np.ndarray]:
    trained, moved = artifact.facts.gradients, artifact.facts.statistics
    own = {t.name: onnx.numpy_helper.to_array(t) for t in artifact.model.graph.initializer}
    parameters, statistics = ({name: own[name] for name in names} for names in (trained, moved))
    if config.init == "random":
        parameters = random_parameters(ir.from_proto(artifact.model).graph, parameters, config.seed)
    return {**parameters, **statistics}


def _under(folder: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {k.removeprefix(f"{folder}/"): v for k, v in tensors.items() if k.startswith(f"{folder}/")}


def _found(tensors: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if name not in tensors:
        raise TrainError(
            "Training continues with the optimizer that it began with.",
            got=f"a start without {name}",
            fix="Choose the same train/optimizer, or start anew.",
        )
    return tensors[name]


def _losses(start: Mapping[str, np.ndarray]) -> Losses:
    train, validation = start["losses/train"].tolist(), start.get("losses/validation", np.zeros(0)).tolist()
    return Losses([start["losses/step"]], [start["losses/rate"]], train, validation)


def _validation(
    artifact: Artifact, data: Data, runtime: RuntimeConfig | None
) -> Callable[[Mapping[str, np.ndarray]], float] | None:
    """Return the function from parameters to the loss per validation row, if there are any rows."""
    if data.validation is None:
        return None
    facts, count = artifact.facts, len(data.validation)
    assert facts.loss is not None
    model = for_inference(extract(artifact.model, [facts.loss]))
    taken = {i.name for i in model.graph.input}
    rows = {k: v for k, v in feeds(artifact.model, facts, data.validation).items() if k in taken}
    session = Session(model, runtime)

    def validate(values: Mapping[str, np.ndarray]) -> float:
        [loss] = session.run({**rows, **{name: array for name, array in values.items() if name in taken}})
        return float(loss) / (1 if facts.reduction == "mean" else count)

    return validate
