"""train: a gradient model and rows → a trained model, its state and its losses."""

import dataclasses
from collections.abc import Callable, Collection, Mapping

import numpy as np

from ortpipe.artifact import Arrays, Artifact, Facts, under
from ortpipe.data.feeds import check_labels, feed_inputs, feed_label
from ortpipe.data.rows import Data, check_data
from ortpipe.errors import DataError, ModelError, TrainError
from ortpipe.graph.core import query
from ortpipe.graph.core.apart import sealed
from ortpipe.graph.core.check import finish
from ortpipe.graph.core.edit import set_initializers
from ortpipe.graph.forms.adapters import Adapter, merged, without_adapters
from ortpipe.graph.forms.modes import to_inference
from ortpipe.runtime.config import RuntimeConfig
from ortpipe.runtime.session import Session
from ortpipe.settings import typed
from ortpipe.stages.train import full_batch, mini_batch
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.front import behind_front
from ortpipe.stages.train.losses import kept_epoch, note, rounding_note, still_note
from ortpipe.stages.train.rates import rows_per_epoch
from ortpipe.stages.train.training import Checkpoint, Training
from ortpipe.stages.train.validation import Validation, check_monitor

VERSION = 9


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
        report: called with an `Epoch` after each epoch, and with a `Checkpoint` if one is due or on a signal.
        start: a checkpoint of this training, or the tensors of an earlier result, to continue from. Their epochs count:
            training that is interrupted and continued is byte-identical to training without interruption.

    Returns:
        An artifact whose tensors are `parameter/…` and `initial/…` by parameter, running statistic and weight with
        merged adapters; `optimizer/…` by slot and parameter (`optimizer/iterate/…` has the weights if `parameter/…` has
        their averages); and the losses: `losses/step` and (except lbfgs) `losses/rate` [steps], `losses/train` and
        `losses/validation` [epochs] (per row; nan in epochs without validation), and `monitor/…` [epochs] if a metric
        is monitored.
        The same artifact, config and data give a byte-identical result.

    Raises:
        ConvergenceError: the loss became nan or infinite.
        DataError: the rows do not fit the model.
        EvaluateError: the monitored metric does not fit the task or has no value on the validation rows.
        TrainError: the model has no gradients or forward outputs.
    """
    check_data(data)
    config = config or TrainConfig()
    facts = artifact.facts
    if not facts.gradients or not facts.outputs:
        raise TrainError(
            "train needs a gradient model with its forward outputs.",
            got=f"{len(facts.gradients)} gradients, {len(facts.outputs)} forward outputs",
            fix="Run derive first, with {@derive.forward_outputs}=true.",
        )
    _check_patterns(config, facts, artifact.initializers)
    check_monitor(config.early_stop.monitor, facts, data)
    aside = data.validation
    behind, feed = behind_front(artifact, data, runtime)
    validate = None if aside is None else Validation(behind, aside, config.early_stop.monitor, runtime, feed)
    solve = full_batch.solve if config.optimizer.solver == "lbfgs" else mini_batch.solve
    try:
        tensors = solve(Training(behind, config, data, runtime, report, start, validate, feed, artifact.digest()))
    except ModelError:
        _check_elements(artifact, data)
        raise
    tensors = {name: sealed(array) for name, array in tensors.items()}  # once: the model and its artifact share them
    best_epoch = kept_epoch(tensors, config.early_stop)
    kinds = {name: artifact.initializers[name].dtype for name in facts.gradients}
    notes = (
        [] if best_epoch is None else [note(best_epoch, config, validated=aside is not None, weighted=data.weighted)]
    )
    forward = artifact.ir_model(facts.outputs)
    adapters = {name: Adapter.of(fact) for name, fact in facts.adapters.items()}
    without_adapters(forward, adapters)
    tensors |= _merged(artifact.initializers, tensors, adapters)
    set_initializers(forward, under("parameter", tensors))
    to_inference(forward)
    return artifact.next(
        "train",
        VERSION,
        model=forward,
        tensors={**{k: v for k, v in artifact.tensors.items() if k.startswith("source/")}, **tensors},
        parameters=(*(name for name in facts.parameters if name in forward.graph.initializers), *adapters),
        constants=tuple(name for name in facts.constants if name not in adapters),
        loss=None,
        label=None,
        heads={name: dataclasses.replace(head, label=None) for name, head in facts.heads.items()},
        sample_weight=None,
        gradients={},
        input_gradients={},
        statistics={},
        notes=[*notes, *filter(None, (still_note(tensors), rounding_note(tensors, kinds)))],
        record=None if best_epoch is None else {"early_stop": dataclasses.asdict(best_epoch)},
    )


def check(facts: Facts, config: TrainConfig, *, data: Data, **others: object) -> None:
    """Reject labels that are no class, patterns without a matching parameter, and metrics that cannot be monitored."""
    candidates = (*facts.parameters, *facts.constants)  # derive.parameters may select constants
    _check_patterns(config, dataclasses.replace(facts, parameters=candidates))
    for part in (data.train, data.validation, data.test):
        if part is not None:
            check_labels(facts, part)
    if config.optimizer.solver == "lbfgs":
        full_batch.in_memory(data)
    else:
        rows_per_epoch(config, len(data.train))
    check_monitor(config.early_stop.monitor, facts, data)


def _merged(weights: Arrays, tensors: Arrays, adapters: Mapping[str, Adapter]) -> dict[str, np.ndarray]:
    """Return the initial and final values of weights with adapters, in the form of trained weights."""
    trained = {**weights, **under("parameter", tensors)}  # some have no gradient
    return {f"initial/{name}": weights[name] for name in adapters} | {
        f"parameter/{name}": merged(weights[name], trained[left_factor], trained[right_factor], scale)
        for name, (left_factor, right_factor, scale) in adapters.items()
    }


def _check_elements(artifact: Artifact, data: Data) -> None:
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


def _check_patterns(config: TrainConfig, facts: Facts, fixed_names: Collection[str] = ()) -> None:
    """Reject a pattern that matches no parameter, or is the name of an initializer that is not trained."""
    if facts.adapters and config.init == "random":
        rule = "Adapters need the model's own weights; they start at zero."
        raise TrainError(rule, key="init", got="random", fix="Set {key}=keep, or leave out {@derive.adapters}.")
    for key, values in (("weight_decay", config.weight_decay), ("factors", config.factors)):
        if isinstance(values, Mapping):
            query.select(list(values), facts.parameters, TrainError, key, fixed_names)
