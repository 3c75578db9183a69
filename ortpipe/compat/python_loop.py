"""Train batch by batch in Python, with losses, penalties and learning rates of a user's own classes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortpipe import Artifact, Data, Rows, TrainConfig
from ortpipe.artifact import under
from ortpipe.compat.devices import array_of, get_ort_device, numpy_to_ort_value
from ortpipe.compat.forward_backward import OrtGradientForwardBackward
from ortpipe.compat.learning_base import is_own, put
from ortpipe.compat.learning_rates import BaseLearningRate
from ortpipe.compat.learning_terms import BaseLearningLoss, BaseLearningPenalty, ElasticLearningPenalty
from ortpipe.compat.models import first_weights
from ortpipe.data import Batches, feed_inputs
from ortpipe.errors import ConvergenceError, DataError
from ortpipe.stages import Epoch

Arrays = Mapping[str, np.ndarray]
LABEL, WEIGHT = "\0label", "\0weight"  # keys that cannot be names of inputs
LOSSES = ("step", "rate", "train", "validation")


@dataclass(frozen=True)
class Parts:
    """The objects that the loop calls."""

    loss: BaseLearningLoss
    penalty: BaseLearningPenalty
    rate: BaseLearningRate

    @property
    def any_own(self) -> bool:
        """Whether one of them is an instance of a user's own class."""
        return any(map(is_own, (self.loss, self.penalty, self.rate)))


def train_in_python(
    forward: Artifact,
    data: Data,
    config: TrainConfig,
    parts: Parts,
    report: Callable[[Epoch], None],
    start: Arrays | None = None,
) -> dict[str, np.ndarray]:
    """Train a forward model on the rows in train's order, and return the tensors of the train stage.

    Raises:
        ConvergenceError: a loss or a weight is not finite; the error has the tensors of the last complete pass.
        DataError: a loss of ortpipe gets another number of labels than the model predicts.
    """
    device, loss, penalty, rate = get_ort_device("cpu"), parts.loss, parts.penalty, parts.rate
    facts = forward.facts
    names = facts.parameters
    initial: Arrays = first_weights(forward, config)
    first = initial if start is None else under("parameter", start)
    velocity = under("optimizer/velocity", start or {}) or {name: np.zeros_like(first[name]) for name in names}
    weights = [numpy_to_ort_value(first[name]) for name in names]
    velocities = [numpy_to_ort_value(velocity[name]) for name in names] if rate.needs_grad else [None] * len(names)
    model = OrtGradientForwardBackward(forward.model, names, facts.inputs, [facts.prediction])
    function, inputs = model.new_instance(), len(facts.inputs)
    differentiated = type(penalty).update_weights is ElasticLearningPenalty.update_weights  # not overridden
    batches = Batches(data.train, lambda rows: rows_of(forward, rows), config.batch_size, seed=config.seed)
    losses = {key: list(map(float, under("losses", start or {}).get(key, ()))) for key in LOSSES}

    def tensors() -> dict[str, np.ndarray]:
        states = {"parameter": weights} | ({"optimizer/velocity": velocities} if rate.needs_grad else {})
        arrays = {  # copies: an OrtValue's numpy() is its memory, which the next steps overwrite
            f"{folder}/{name}": np.array(value.numpy())
            for folder, values in states.items()
            for name, value in zip(names, values, strict=True)
        }
        arrays |= {f"initial/{name}": array for name, array in initial.items()}
        return arrays | {f"losses/{key}": np.array(values) for key, values in losses.items()}

    def loss_of(batch: Arrays, training: bool) -> tuple[Any, Any]:
        forward_inputs = [*(batch[name] for name in facts.inputs), *weights]
        [predicted] = function.forward(forward_inputs, training=training)
        if not is_own(loss) and predicted.shape != batch[LABEL].shape:
            width = predicted.shape[1]
            raise DataError(
                "y must have as many columns as the model predicts.",
                got=f"{batch[LABEL].shape[1]}",
                fix=f"Give {width}.",
            )
        row_weights = numpy_to_ort_value(batch[WEIGHT]) if WEIGHT in batch else None
        return loss.loss_gradient(
            device, numpy_to_ort_value(batch[LABEL]), numpy_to_ort_value(predicted), weight=row_weights
        )

    rate.after(losses["train"]) if losses["train"] else rate.init_learning_rate()
    last_complete = tensors()
    for number in range(len(losses["train"]) + 1, config.epochs + 1):
        total = 0.0
        for chunk in batches.epoch(number):
            for batch in ({k: v[i] for k, v in chunk.items()} for i in range(len(chunk[LABEL]))):
                value, gradient = loss_of(batch, training=True)
                value = float(array_of(penalty.penalty_loss(device, value, *weights)).reshape(()))
                _check(value, number, rate, last_complete)
                gradients = function.backward([gradient])[inputs:]
                for place, (weight, slope) in enumerate(zip(weights, gradients, strict=True)):
                    if differentiated:
                        slope = slope + penalty.gradient(weight.numpy())
                    else:
                        _apply([weight], penalty.update_weights(place, device, weight))
                    arguments = (place, device, weight, numpy_to_ort_value(array_of(slope)), config.batch_size)
                    moved = rate.update_weights(*arguments, velocity=velocities[place])
                    _apply([weight, velocities[place]], moved)
                losses["step"].append(value)
                losses["rate"].append(rate.value)
                total += value
        if not all(np.isfinite(weight.numpy()).all() for weight in weights):
            raise _diverged(
                f"weights that are not finite in pass {number}; learning rate {rate.value:g}", last_complete
            )
        losses["train"].append(total / batches.count)
        validation = None
        if isinstance(data.validation, Rows):
            value, _ = loss_of(rows_of(forward, data.validation), training=False)
            value = penalty.penalty_loss(device, value, *weights)
            validation = float(array_of(value).reshape(())) / len(data.validation)
            _check(validation, number, rate, last_complete)
            losses["validation"].append(validation)
        used, last_complete = rate.value, tensors()
        if is_own(rate):
            rate.update_learning_rate(number)
        else:
            rate.after(losses["train"])
        steps = len(losses["step"])
        report(Epoch(number, config.epochs, losses["train"][-1], validation, used, steps, steps))
    return last_complete


def rows_of(forward: Artifact, rows: Rows) -> dict[str, np.ndarray]:
    """Return the rows' inputs by name, their labels [N, K] under LABEL, and their weights, if any, under WEIGHT."""
    feeds = {**feed_inputs(forward.model, forward.facts, rows), LABEL: rows.label.reshape(len(rows), -1)}
    if rows.sample_weight is not None:
        feeds[WEIGHT] = rows.sample_weight.astype(feeds[forward.facts.inputs[0]].dtype)
    return feeds


def _check(loss: float, number: int, rate: BaseLearningRate, last_complete: dict[str, np.ndarray]) -> None:
    if not np.isfinite(loss):
        raise _diverged(f"loss {loss} in pass {number}; learning rate {rate.value:g}", last_complete)


def _diverged(description: str, last_complete: dict[str, np.ndarray]) -> ConvergenceError:
    error = ConvergenceError("Training must keep losses and weights finite.", got=description)
    error.tensors = last_complete
    return error


def _apply(targets: list[Any], results: Any) -> None:
    """Write a method's results into the targets, if it returned new arrays instead of changing them in place."""
    for target, result in zip(targets, results if isinstance(results, tuple | list) else [results], strict=False):
        if result is not None and result is not target:
            put(target, array_of(result))
