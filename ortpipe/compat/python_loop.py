"""Train batch by batch in Python, with losses, penalties and learning rates of a user's own classes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortpipe import Artifact, Data, Rows, TrainConfig
from ortpipe.artifact import in_folder
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
    batches = Batches(data.train, lambda rows: rows_of(forward, rows), config.batch_size, seed=config.seed)
    training, rate = _Training(forward, config, parts, start or {}), parts.rate
    losses = training.losses
    rate.after(losses["train"]) if losses["train"] else rate.init_learning_rate()
    tensors = training.tensors()
    try:
        for number in range(len(losses["train"]) + 1, config.epochs + 1):
            steps = len(losses["step"])
            for chunk in batches.epoch(number):
                for batch in ({k: v[i] for k, v in chunk.items()} for i in range(len(chunk[LABEL]))):
                    training.step(batch, number)
            if not all(np.isfinite(weight.numpy()).all() for weight in training.weights):
                raise training.diverged("weights that are not finite", number)
            losses["train"].append(sum(losses["step"][steps:], 0.0) / batches.count)
            validation = None
            if isinstance(data.validation, Rows):
                value, _ = training.loss_of(rows_of(forward, data.validation), training=False)
                validation = training.penalized(value, number, len(data.validation))
                losses["validation"].append(validation)
            used, tensors, done = rate.value, training.tensors(), len(losses["step"])
            if is_own(rate):
                rate.update_learning_rate(number)
            else:
                rate.after(losses["train"])
            report(Epoch(number, config.epochs, losses["train"][-1], validation, used, done, done))
    except ConvergenceError as error:
        error.tensors = tensors
        raise
    return tensors


class _Training:
    """The weights, velocities and losses of a training, and its step."""

    def __init__(self, forward: Artifact, config: TrainConfig, parts: Parts, start: Arrays) -> None:
        facts, self._parts, self._device, self._size = forward.facts, parts, get_ort_device("cpu"), config.batch_size
        self._names, self._inputs, self._initial = facts.parameters, facts.inputs, first_weights(forward, config)
        first = in_folder("parameter", start) or self._initial
        velocity = in_folder("optimizer/velocity", start) or {name: np.zeros_like(first[name]) for name in self._names}
        states = {"parameter": first} | ({"optimizer/velocity": velocity} if parts.rate.needs_grad else {})
        self._states = {k: [numpy_to_ort_value(arrays[name]) for name in self._names] for k, arrays in states.items()}
        self.weights = self._states["parameter"]
        self.losses = {key: list(map(float, in_folder("losses", start).get(key, ()))) for key in LOSSES}
        model = OrtGradientForwardBackward(forward.model, self._names, facts.inputs, [facts.prediction])
        self._function = model.new_instance()

    def tensors(self) -> dict[str, np.ndarray]:
        """Return copies of the state: an OrtValue's numpy() is its memory, which the next steps overwrite."""
        arrays = {
            f"{folder}/{name}": np.array(value.numpy())
            for folder, values in self._states.items()
            for name, value in zip(self._names, values, strict=True)
        }
        arrays |= {f"initial/{name}": array for name, array in self._initial.items()}
        return arrays | {f"losses/{key}": np.array(values) for key, values in self.losses.items()}

    def loss_of(self, batch: Arrays, training: bool) -> tuple[Any, Any]:
        """Return the loss of a batch, and its gradient by the predictions."""
        forward_inputs = [*(batch[name] for name in self._inputs), *self.weights]
        [predicted] = self._function.forward(forward_inputs, training=training)
        if not is_own(self._parts.loss) and predicted.shape != batch[LABEL].shape:
            columns, fix = batch[LABEL].shape[1], f"Give {predicted.shape[1]}."
            raise DataError("y must have as many columns as the model predicts.", got=f"{columns}", fix=fix)
        weight = numpy_to_ort_value(batch[WEIGHT]) if WEIGHT in batch else None
        label, prediction = numpy_to_ort_value(batch[LABEL]), numpy_to_ort_value(predicted)
        return self._parts.loss.loss_gradient(self._device, label, prediction, weight=weight)

    def penalized(self, value: Any, number: int, rows: int = 1) -> float:
        """Return a loss plus the penalty, per row; raise if it is not finite."""
        total = array_of(self._parts.penalty.penalty_loss(self._device, value, *self.weights))
        loss = float(total.reshape(())) / rows
        if not np.isfinite(loss):
            raise self.diverged(f"loss {loss}", number)
        return loss

    def step(self, batch: Arrays, number: int) -> None:
        """Update the weights by one batch, in pass `number`."""
        penalty, rate, device = self._parts.penalty, self._parts.rate, self._device
        differentiated = type(penalty).update_weights is ElasticLearningPenalty.update_weights  # not overridden
        value, gradient = self.loss_of(batch, training=True)
        loss = self.penalized(value, number)
        velocities = self._states.get("optimizer/velocity", [None] * len(self.weights))
        slopes = self._function.backward([gradient])[len(self._inputs) :]
        for place, (weight, velocity, slope) in enumerate(zip(self.weights, velocities, slopes, strict=True)):
            if differentiated:
                slope = slope + penalty.gradient(weight.numpy())
            else:
                _apply([weight], penalty.update_weights(place, device, weight))
            arguments = (place, device, weight, numpy_to_ort_value(array_of(slope)), self._size)
            _apply([weight, velocity], rate.update_weights(*arguments, velocity=velocity))
        self.losses["step"].append(loss)
        self.losses["rate"].append(rate.value)

    def diverged(self, description: str, number: int) -> ConvergenceError:
        """Return the error for a loss or weights that are not finite."""
        got = f"{description} in pass {number}; learning rate {self._parts.rate.value:g}"
        return ConvergenceError("Training must keep losses and weights finite.", got=got)


def rows_of(forward: Artifact, rows: Rows) -> dict[str, np.ndarray]:
    """Return the rows' inputs by name, their labels [N, K] under LABEL, and their weights, if any, under WEIGHT."""
    feeds = {**feed_inputs(forward.model, forward.facts, rows), LABEL: rows.label.reshape(len(rows), -1)}
    if rows.sample_weight is not None:
        feeds[WEIGHT] = rows.sample_weight.astype(feeds[forward.facts.inputs[0]].dtype)
    return feeds


def _apply(targets: list[Any], results: Any) -> None:
    """Write a method's results into the targets, if it returned new arrays instead of changing them in place."""
    for target, result in zip(targets, results if isinstance(results, tuple | list) else [results], strict=False):
        if result is not None and result is not target:
            put(target, array_of(result))
