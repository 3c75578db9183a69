"""Training batch by batch in Python, which calls losses, penalties and learning rates of somebody's own classes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortpipe.artifact import Artifact, under
from ortpipe.compat.devices import array_of, get_ort_device, numpy_to_ort_value
from ortpipe.compat.forward_backward import OrtGradientForwardBackward
from ortpipe.compat.learning_base import is_own, put
from ortpipe.compat.learning_losses import BaseLearningLoss
from ortpipe.compat.learning_penalties import BaseLearningPenalty, ElasticLearningPenalty
from ortpipe.compat.learning_rates import BaseLearningRate
from ortpipe.compat.models import first_weights
from ortpipe.data.batches import Batches
from ortpipe.data.feeds import feed_inputs
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConvergenceError, DataError
from ortpipe.stages.train.config import TrainConfig
from ortpipe.stages.train.losses import Epoch

Arrays = Mapping[str, np.ndarray]
LABEL, WEIGHT = "\0label", "\0weight"  # beside the names of inputs
LOSSES = ("step", "rate", "train", "validation")


@dataclass(frozen=True)
class Parts:
    """What the loop calls."""

    loss: BaseLearningLoss
    penalty: BaseLearningPenalty
    rate: BaseLearningRate

    @property
    def own(self) -> bool:
        """Whether one of them is of a class that was written outside of ortpipe."""
        return any(map(is_own, (self.loss, self.penalty, self.rate)))


def train_in_python(
    forward: Artifact,
    data: Data,
    config: TrainConfig,
    parts: Parts,
    report: Callable[[Epoch], None],
    start: Arrays | None = None,
) -> dict[str, np.ndarray]:
    """Return the tensors of train for a forward model, in the order of rows that train has.

    Raises:
        ConvergenceError: a loss or a weight is not finite; it has the tensors of the last whole pass.
        DataError: there are more or fewer labels than a loss of ortpipe compares.
    """
    device, loss, penalty, rate = get_ort_device("cpu"), parts.loss, parts.penalty, parts.rate
    facts = forward.facts
    names = facts.parameters
    initial: Arrays = first_weights(forward, config)
    begun = initial if start is None else under("parameter", start)
    velocity = under("optimizer/velocity", start or {}) or {name: np.zeros_like(begun[name]) for name in names}
    weights = [numpy_to_ort_value(begun[name]) for name in names]
    velocities = [numpy_to_ort_value(velocity[name]) for name in names] if rate.needs_grad else [None] * len(names)
    model = OrtGradientForwardBackward(forward.model, names, facts.inputs, [facts.prediction])
    function, inputs = model.new_instance(), len(facts.inputs)
    differentiated = type(penalty).update_weights is ElasticLearningPenalty.update_weights  # not overridden
    batches = Batches(data.train, lambda rows: rows_of(forward, rows), config.batch_size, seed=config.seed)
    kept = {key: list(map(float, under("losses", start or {}).get(key, ()))) for key in LOSSES}

    def tensors() -> dict[str, np.ndarray]:
        states = {"parameter": weights} | ({"optimizer/velocity": velocities} if rate.needs_grad else {})
        found = {  # copies: an OrtValue's numpy() is its memory, in which the next steps write
            f"{folder}/{name}": np.array(value.numpy())
            for folder, values in states.items()
            for name, value in zip(names, values, strict=True)
        }
        found |= {f"initial/{name}": array for name, array in initial.items()}
        return found | {f"losses/{key}": np.array(values) for key, values in kept.items()}

    def loss_of(batch: Arrays, training: bool) -> tuple[Any, Any]:
        given = [*(batch[name] for name in facts.inputs), *weights]
        [predicted] = function.forward(given, training=training)
        if not is_own(loss) and predicted.shape != batch[LABEL].shape:
            wide = predicted.shape[1]
            raise DataError(
                "y has as many columns as the model predicts.", got=f"{batch[LABEL].shape[1]}", fix=f"Give {wide}."
            )
        row_weights = numpy_to_ort_value(batch[WEIGHT]) if WEIGHT in batch else None
        return loss.loss_gradient(
            device, numpy_to_ort_value(batch[LABEL]), numpy_to_ort_value(predicted), weight=row_weights
        )

    rate.after(kept["train"]) if kept["train"] else rate.init_learning_rate()
    whole = tensors()
    for number in range(len(kept["train"]) + 1, config.epochs + 1):
        total = 0.0
        for chunk in batches.epoch(number):
            for batch in ({k: v[i] for k, v in chunk.items()} for i in range(len(chunk[LABEL]))):
                value, gradient = loss_of(batch, training=True)
                value = float(array_of(penalty.penalty_loss(device, value, *weights)).reshape(()))
                _check(value, number, rate, whole)
                gradients = function.backward([gradient])[inputs:]
                for place, (weight, slope) in enumerate(zip(weights, gradients, strict=True)):
                    if differentiated:
                        slope = slope + penalty.gradient(weight.numpy())
                    else:
                        _moved([weight], penalty.update_weights(place, device, weight))
                    arguments = (place, device, weight, numpy_to_ort_value(array_of(slope)), config.batch_size)
                    moved = rate.update_weights(*arguments, velocity=velocities[place])
                    _moved([weight, velocities[place]], moved)
                kept["step"].append(value)
                kept["rate"].append(rate.value)
                total += value
        if not all(np.isfinite(weight.numpy()).all() for weight in weights):
            raise _diverged(f"weights that are not in pass {number}; learning rate {rate.value:g}", whole)
        kept["train"].append(total / batches.count)
        validation = None
        if isinstance(data.validation, Rows):
            value, _ = loss_of(rows_of(forward, data.validation), training=False)
            value = penalty.penalty_loss(device, value, *weights)
            validation = float(array_of(value).reshape(())) / len(data.validation)
            _check(validation, number, rate, whole)
            kept["validation"].append(validation)
        used, whole = rate.value, tensors()
        if is_own(rate):
            rate.update_learning_rate(number)
        else:
            rate.after(kept["train"])
        steps = len(kept["step"])
        report(Epoch(number, config.epochs, kept["train"][-1], validation, used, steps, steps))
    return whole


def rows_of(forward: Artifact, rows: Rows) -> dict[str, np.ndarray]:
    """Return the inputs of rows by name, their labels as a table, and their weights, if they have some."""
    given = {**feed_inputs(forward.model, forward.facts, rows), LABEL: rows.label.reshape(len(rows), -1)}
    if rows.sample_weight is not None:
        given[WEIGHT] = rows.sample_weight.astype(given[forward.facts.inputs[0]].dtype)
    return given


def _check(loss: float, number: int, rate: BaseLearningRate, whole: dict[str, np.ndarray]) -> None:
    if not np.isfinite(loss):
        raise _diverged(f"loss {loss} in pass {number}; learning rate {rate.value:g}", whole)


def _diverged(got: str, whole: dict[str, np.ndarray]) -> ConvergenceError:
    error = ConvergenceError("Training must keep losses and weights finite.", got=got)
    error.tensors = whole
    return error


def _moved(targets: list[Any], results: Any) -> None:
    """Take over what a method returns instead of changing what it was given."""
    for target, result in zip(targets, results if isinstance(results, tuple | list) else [results], strict=False):
        if result is not None and result is not target:
            put(target, array_of(result))
