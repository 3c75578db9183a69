"""Shared by onnxcustom's two optimizer classes: fit runs the train stage, and the state is its tensors."""

import logging
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import onnx

from ortpipe import Artifact, CheckpointConfig, Data, Rows, TrainConfig, train
from ortpipe.artifact import in_folder
from ortpipe.compat.devices import array_of, cpu, get_ort_device
from ortpipe.compat.initializers import replace_initializers_into_onnx
from ortpipe.compat.learning_rates import BaseLearningRate
from ortpipe.compat.models import saved, short
from ortpipe.compat.parameters import Parameters, check_known
from ortpipe.data import RowSet
from ortpipe.errors import ConfigError, ConvergenceError, DataError, NotFittedError, TrainError, words
from ortpipe.settings import Count, Positive, checked

Tensors = Mapping[str, np.ndarray]
Report = Callable[[Any], None]


WORDS = {  # settings of the stages → arguments
    "frozen": "weights_to_train",
    "parameters": "weights_to_train",
    "freeze": "weights_to_train",
    "train/optimizer": "learning_rate",
}


class OptimizerNameError(ConfigError, NotImplementedError):
    """An optimizer other than SGD (a NotImplementedError, as in the original)."""


@dataclass(eq=False, repr=False)
class Estimator(Parameters, ABC):
    """Trains a model's weights; a subclass defines the loss, and documents the arguments."""

    model_onnx: onnx.ModelProto
    weights_to_train: Any
    loss_output_name: str = "loss"
    max_iter: int = 100
    training_optimizer_name: str = "SGDOptimizer"
    batch_size: int = 10
    learning_rate: Any = "SGD"
    device: Any = "cpu"
    warm_start: bool = False
    verbose: int = 0
    validation_every: float = 0.1

    seed = 0  # the seed of the initial weights and of the order of the rows

    def __post_init__(self) -> None:
        self.learning_rate = BaseLearningRate.select(self.learning_rate)
        cpu(self.device)
        self.device = get_ort_device("cpu")
        if self.training_optimizer_name != "SGDOptimizer":
            raise OptimizerNameError(
                "training_optimizer_name must be 'SGDOptimizer'.",
                got=repr(self.training_optimizer_name),
                fix="Choose momentum by learning_rate=LearningRateSGDNesterov(…), or use OrtRegressor, OrtClassifier.",
            )
        self.max_iter = checked(self.max_iter, Count, "max_iter", 100)
        self.batch_size = checked(self.batch_size, Count, "batch_size", 10)
        self.validation_every = checked(self.validation_every, Positive, "validation_every", 0.1)

    @property
    def trained_coef_(self) -> dict[str, np.ndarray]:
        """The trained weights by name."""
        return self._state()

    def get_params(self, deep: bool = False) -> dict[str, Any]:
        """Return the constructor's arguments by name; `deep` adds the arguments' own parameters, as `a__b`."""
        return {**super().get_params(deep), "device": "cpu"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {k: v for k, v in state.items() if k not in ("device", "train_session_", "train_function_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "device": get_ort_device("cpu")})

    @words(WORDS)
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, X_val: Any = None, y_val: Any = None, use_numpy: bool = False
    ) -> Self:
        """Train.

        Args:
            X: features [N, …], or arrays by input name if the model has several.
            y: labels [N] or [N, K].
            sample_weight: row weights [N] or [N, 1], if the loss has an input for them.
            X_val: features of the validation rows; their weight is 1 in a weighted loss.
            y_val: their labels.
            use_numpy: ignored; rows are always read from the arrays.

        Raises:
            ConvergenceError: a loss or a weight is not finite; state and losses are those of the last complete
                pass. (A warning with `exc=False`, where that argument exists.)
            DataError: the arrays do not fit the model.
            LossError, TrainError: the loss does not fit the model.
            DeriveError: a weight does not exist, or the loss has no gradient for it.
        """
        sample_weight = self._row_weights(y, sample_weight)
        artifact = self._gradients(y, sample_weight)
        facts, width = artifact.facts, _width(artifact)
        weighted = facts.sample_weight is not None
        if facts.label is not None and weighted != (sample_weight is not None):
            raise DataError(
                "sample_weight must be given if, and only if, the loss has an input for row weights.",
                got="a loss with row weights, and no sample_weight" if weighted else "a loss without row weights",
                fix="Give fit a sample_weight."
                if weighted
                else "Make the loss with add_loss_output(…, weight_name=…).",
            )
        training_rows, validation = rows(facts.inputs, X, y, sample_weight), None
        if X_val is not None:
            validation = rows(facts.inputs, X_val, y_val, np.ones(len(y_val)) if weighted else None)
        for part in (training_rows,) if validation is None else (training_rows, validation):
            columns = part.label.size // max(1, len(part))
            if width is not None and columns != width:
                raise DataError("y must have as many columns as the model predicts.", got=columns, fix=f"Give {width}.")
        data = Data(training_rows, validation)
        _check_rows(artifact, data.train, self.batch_size)
        if len(data.train) < self.batch_size:
            text = "[%s.fit] %d rows are fewer than batch_size=%d; steps are still divided by batch_size"
            logging.getLogger("ortpipe").warning(text, type(self).__name__, len(data.train), self.batch_size)
        self._begin(artifact)
        self._train(artifact, data)
        return self

    def _row_weights(self, y: Any, sample_weight: Any) -> Any:
        """Return the row weights for training, from those passed to fit."""
        return sample_weight

    def _begin(self, artifact: Artifact) -> None:
        """Delete the sessions of the previous fit."""
        for name in ("train_session_", "train_function_"):
            self.__dict__.pop(name, None)

    def _train(self, artifact: Artifact, data: Data) -> None:
        from tqdm import tqdm

        before = getattr(self, "tensors_", {})  # after a divergence there are no steps to continue from
        start = before if self.warm_start and "losses/step" in before else None
        done, validated = 0 if start is None else len(start["losses/train"]), data.validation is not None
        with tqdm(total=self.max_iter, disable=self.verbose < 1) as bar:

            def report(epoch: Any) -> None:
                self._on_pass(epoch)
                if self.verbose > 1:
                    bar.set_description(f"loss={epoch.loss:.3g} lr={epoch.rate:.3g}")
                bar.update()

            try:
                tensors = self._tensors(artifact, data, done + self.max_iter, report, start)
            except ConvergenceError as error:
                self._diverged(error, done, validated=validated)
                return
        self._keep(tensors, done, validated=validated)

    def _config(self, passes: int) -> TrainConfig:
        """Return the config of train, with rate η / batch size, for the loss is a sum over rows."""
        return TrainConfig(
            self.learning_rate.optimizer(self.batch_size),
            self.learning_rate.schedule(),
            "epoch",
            epochs=passes,
            batch_size=self.batch_size,
            init="keep" if self.warm_start else "random",
            seed=self.seed,
            checkpoint=CheckpointConfig(minutes=None),
        )

    def _tensors(self, artifact: Artifact, data: Data, passes: int, report: Report, start: Tensors | None) -> Tensors:
        """Return the tensors of a training of `passes` passes, including those of `start`."""
        return train(artifact, self._config(passes), data=data, report=report, start=start).tensors

    def _on_pass(self, epoch: Any) -> None:
        """Do nothing after a pass; a subclass may log it."""

    def _diverged(self, error: ConvergenceError, done: int, *, validated: bool) -> None:
        """Keep the state after the last complete pass, and raise the error."""
        nothing = {"losses/train": np.zeros(0), "losses/validation": np.zeros(0)}  # in case no pass was completed
        self._keep({**nothing, **error.tensors}, done, validated=validated)
        raise self._as_arguments(error) from error

    def _as_arguments(self, error: ConvergenceError) -> ConvergenceError:
        """Return the train stage's error in terms of the arguments."""
        eta = self.learning_rate.first()
        return ConvergenceError(
            "Training must keep losses and weights finite.",
            got=re.sub(r"learning rate [^;]+", f"learning rate {eta:g}", str(error.got)),
            fix=f"Lower learning_rate ({eta / 10:g}), or scale X." if eta else "Lower learning_rate, or scale X.",
        )

    def _keep(self, tensors: Tensors, done: int, *, validated: bool) -> None:
        losses = tensors["losses/train"].tolist()
        share = self.validation_every
        every = max(1, int(self.max_iter * share if share < 1 else share))
        self.tensors_ = dict(tensors)
        self.train_losses_ = losses[done:]
        self.validation_losses_ = (
            tensors["losses/validation"][done:][every - 1 :: every].tolist() if validated else None
        )
        self.learning_rate.after(losses)

    def _state(self, folder: str = "parameter") -> dict[str, np.ndarray]:
        """Return copies of the tensors of a folder by name, those of `weights_to_train` first.

        Raises:
            NotFittedError: before fit.
        """
        if not hasattr(self, "tensors_"):
            raise NotFittedError(
                "There are no trained weights before fit has run.", got="no fit yet", fix="Call fit(X, y)."
            )
        state = {name: array.copy() for name, array in in_folder(folder, self.tensors_).items()}
        first = [name for name in self.weights_to_train or () if name in state]
        return {name: state[name] for name in dict.fromkeys([*first, *state])}

    def _set(self, state: Mapping[str, Any], folder: str = "parameter") -> None:
        present = self._state(folder)
        for name, value in state.items():
            check_known(name, present, "Only trained weights can be set.", TrainError)
            array = np.asarray(array_of(value), present[name].dtype)
            if array.shape != present[name].shape:
                raise TrainError(
                    "A new weight must have the shape of the old one.",
                    got=f"{array.shape} for {name!r}",
                    fix=f"Give an array of shape {present[name].shape}.",
                )
            self.tensors_[f"{folder}/{name}"] = array.copy()

    @abstractmethod
    def _gradients(self, y: Any = None, sample_weight: Any = None) -> Artifact:
        """Return the gradient model for training with these labels and row weights."""

    def save_onnx_graph(self, folder: Any, prefix: str | None = None, suffix: str | None = None) -> dict[str, Any]:
        """Write every graph into a folder (`bytes` instead of a folder returns them as bytes).

        Returns:
            File or bytes by graph: `model_onnx`, `gradient_onnx`, and a nested dictionary for each part.

        Raises:
            ConfigError: the folder does not exist.
        """
        return saved(self._graphs(), folder, short(type(self).__name__), prefix, suffix)

    def _graphs(self) -> dict[str, Any]:
        derived = self._gradients()
        gradient = {"gradient_onnx": derived.model} if derived.facts.gradients else {}
        return {"model_onnx": self.model_onnx, **gradient, "learning_rate": self.learning_rate}

    def get_trained_onnx(self, model: onnx.ModelProto | None = None) -> onnx.ModelProto:
        """Return the model with trained weights.

        Args:
            model: another graph with initializers of these names, such as the model without the loss.

        Raises:
            NotFittedError: before fit.
            TrainError: the graph has none of these initializers.
        """
        target = self.model_onnx if model is None else model
        names = [t.name for t in target.graph.initializer]
        state = {name: array for name, array in self._state().items() if name in names}
        if not state:
            raise TrainError(
                "The model must have initializers with the trained weights' names.",
                got=f"{', '.join(names) or 'none'}",
                fix=f"Give a graph with {', '.join(self._state())}.",
            )
        return replace_initializers_into_onnx(target, state)


def rows(names: Iterable[str], X: Any, y: Any, sample_weight: Any = None) -> Rows:
    """Return arrays (by name for several inputs) as rows; labels of more than two dimensions become a table."""
    inputs = X if isinstance(X, Mapping) else {next(iter(names)): X}
    weights = None if sample_weight is None else np.asarray(sample_weight).reshape(-1)
    labels = np.asarray(y)
    labels = labels.reshape(len(labels), -1) if labels.ndim > 2 else labels
    return Rows({name: np.asarray(array) for name, array in inputs.items()}, labels, weights)


def _check_rows(artifact: Artifact, rows: RowSet, size: int) -> None:
    """Reject other batch sizes if the model has a fixed one."""
    dims = [i.type.tensor_type.shape.dim for i in artifact.model.graph.input if i.name in artifact.facts.inputs]
    fixed = {dim[0].dim_value for dim in dims if len(dim)} - {0}
    if any(size != n or len(rows) % n for n in fixed):
        [least, *_] = fixed
        raise DataError(
            "The batch size must be the model's fixed one.",
            got=f"batches of {size}, {len(rows)} rows",
            fix=f"Set batch_size={least} and give a multiple of {least} rows, or export it for any number of rows.",
        )


def _width(artifact: Artifact) -> int | None:
    """Return the number of values of a row's label, None if it is unknown."""
    shapes = [i.type.tensor_type.shape.dim for i in artifact.model.graph.input if i.name == artifact.facts.label]
    return next((math.prod(dim.dim_value for dim in shape[1:]) or None for shape in shapes if len(shape)), None)
