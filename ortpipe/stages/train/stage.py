"""train: a gradient model and rows → a trained model, its state and its losses."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import numpy as np

from ortpipe.artifact import Artifact, Facts, under
from ortpipe.data.feeds import check_labels
from ortpipe.data.rows import Data, check_data
from ortpipe.errors import TrainError
from ortpipe.graph import query
from ortpipe.graph.edit import keep_outputs, set_initializers
from ortpipe.graph.modes import to_inference
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.settings import typed
from ortpipe.stages.train import full_batch, mini_batch
from ortpipe.stages.train.checkpoint import Checkpoint
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.early_stop import kept_epoch, note
from ortpipe.stages.train.losses import still_note
from ortpipe.stages.train.training import Training
from ortpipe.stages.train.validation import Validation, check_monitor

VERSION = 3


class Solver(Protocol):
    """What moves the parameters: a module of this room."""

    def check(self, config: TrainConfig, data: Data) -> None:
        """Refuse rows that it cannot train on."""

    def solve(self, training: Training) -> dict[str, np.ndarray]:
        """Return train's tensors."""


SOLVERS: dict[str, Solver] = {"minibatch": mini_batch, "lbfgs": full_batch}


@typed
def train(
    artifact: Artifact,
    config: TrainConfig | None = None,
    *,
    data: Data,
    runtime: RuntimeConfig | None = None,
    report: Callable[[object], None] = lambda event: None,
    start: Checkpoint | Mapping[str, np.ndarray] | None = None,
) -> Artifact:
    """Return the forward model with trained weights.

    Args:
        artifact: a gradient model with its forward outputs.
        config: optimizer, schedule, epochs, …
        data: training rows, and validation rows if there are any.
        runtime: threads.
        report: called with an `Epoch` after each epoch, and with a `Checkpoint` when one is due or a signal stops it.
        start: what to continue from: a checkpoint of this training, or the tensors of an earlier result. The epochs in
            them count: a training that is stopped anywhere and continued gives the bytes of one that is not.

    Returns:
        An artifact whose tensors are `parameter/…` and `initial/…` by parameter (and running statistic),
        `optimizer/…` by slot and parameter (`optimizer/iterate/…`: the weights themselves, where `parameter/…` are
        their averages), and the losses:
        `losses/step` and (but for lbfgs) `losses/rate` [steps], `losses/train` and `losses/validation` [epochs] (per
        row; validation is nan where it was not evaluated), and `monitor/…` [epochs] of the metric that is watched, if
        one is.
        The same artifact, config and data give the same bytes.

    Raises:
        ConvergenceError: the loss became nan or infinite.
        DataError: the rows do not fit the model.
        EvaluateError: the metric that is watched does not fit the task or has no value on the validation rows.
        TrainError: the model has no gradients or forward outputs.
    """
    check_data(data)
    config = config or TrainConfig()
    facts = artifact.facts
    if not facts.gradients or not facts.outputs:
        raise TrainError(
            "train needs a gradient model with its forward outputs.",
            got=f"{len(facts.gradients)} gradients, {len(facts.outputs)} forward outputs",
            fix="Run derive first, with derive.forward_outputs=true.",
        )
    _check_patterns(config, facts, artifact.initializers)
    check_monitor(config.early_stop.monitor, facts, data)
    aside = data.validation
    validate = Validation(artifact, aside, config.early_stop.monitor, runtime) if aside is not None else None
    training = Training(artifact, config, data, runtime, report, start, validate)
    tensors = SOLVERS[config.optimizer.solver].solve(training)
    return _trained(artifact, tensors, config, data)


def _trained(artifact: Artifact, tensors: Mapping[str, np.ndarray], config: TrainConfig, data: Data) -> Artifact:
    """Return the forward model with the parameters among the tensors of a training."""
    kept = kept_epoch(tensors, config.early_stop)
    said = [] if kept is None else [note(kept, config, validated=data.validation is not None, weighted=data.weighted)]
    said += [still] if (still := still_note(tensors)) is not None else []
    forward = artifact.ir_model()
    keep_outputs(forward, artifact.facts.outputs)
    set_initializers(forward, under("parameter", tensors))
    to_inference(forward)
    return artifact.next(
        "train",
        VERSION,
        model=forward,
        tensors={**{k: v for k, v in artifact.tensors.items() if k.startswith("source/")}, **tensors},
        loss=None,
        label=None,
        sample_weight=None,
        gradients={},
        input_gradients={},
        statistics={},
        notes=said,
        record=None if kept is None else {"early_stop": dataclasses.asdict(kept)},
    )


def check(
    facts: Facts,
    config: TrainConfig,
    *,
    data: Data,
    **others: object,
) -> None:
    """Refuse labels that are no class, patterns that match no parameter, and a metric that cannot be watched."""
    _check_patterns(config, facts)
    for part in (data.train, data.validation, data.test):
        if part is not None:
            check_labels(facts, part)
    SOLVERS[config.optimizer.solver].check(config, data)
    check_monitor(config.early_stop.monitor, facts, data)


def _check_patterns(config: TrainConfig, facts: Facts, held: Collection[str] = ()) -> None:
    """Refuse a pattern that matches no parameter, or is the name of an initializer that is not trained."""
    for key, given in (("weight_decay", config.weight_decay), ("factors", config.factors)):
        if isinstance(given, Mapping):
            query.select(list(given), facts.parameters, TrainError, key, held)
