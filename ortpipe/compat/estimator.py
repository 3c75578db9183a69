"""What onnxcustom's two optimizer classes share: fit is the train stage, and the state is its tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx

from ortpipe.artifact import Artifact, under
from ortpipe.compat.devices import cpu
from ortpipe.compat.learning_rates import LearningRateSGD
from ortpipe.compat.parameters import Parameters
from ortpipe.compat.saving import saved
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConfigError, NotFittedError, TrainError, nearest
from ortpipe.graph.compose import with_parameters
from ortpipe.stages.train.config import CheckpointConfig, TrainConfig
from ortpipe.stages.train.stage import train


class Estimator(Parameters, ABC):
    """Trains a model's weights; a subclass says what the loss is."""

    seed = 0  # of the first weights and the order of the rows

    model_onnx: onnx.ModelProto
    weights_to_train: Any
    train_losses_: list[float]
    validation_losses_: list[float] | None
    tensors_: dict[str, np.ndarray]  # of the train stage

    def _configure(
        self,
        *,
        model_onnx: onnx.ModelProto,
        weights_to_train: Iterable[str] | None,
        loss_output_name: str,
        max_iter: int,
        training_optimizer_name: str,
        batch_size: int,
        learning_rate: Any,
        device: Any,
        warm_start: bool,
        verbose: int,
        validation_every: float,
    ) -> None:
        if training_optimizer_name != "SGDOptimizer":
            raise ConfigError(
                "training_optimizer_name is 'SGDOptimizer'.",
                got=repr(training_optimizer_name),
                fix="Choose momentum by learning_rate=LearningRateSGDNesterov(…), other optimizers in train/optimizer.",
            )
        if not validation_every > 0:
            raise ConfigError("validation_every is positive.", got=validation_every, fix="Use 1 for every pass.")
        self.model_onnx, self.weights_to_train = model_onnx, weights_to_train
        self.loss_output_name, self.training_optimizer_name = loss_output_name, training_optimizer_name
        self.max_iter, self.batch_size = max_iter, batch_size
        self.learning_rate = LearningRateSGD.select(learning_rate)
        self.device, self.warm_start, self.verbose = cpu(device), warm_start, verbose
        self.validation_every = validation_every

    def _train(self, artifact: Artifact, data: Data) -> None:
        """Train with rate η / batch size where the loss is a sum over rows: a step follows the mean gradient."""
        before = getattr(self, "tensors_", {})  # after a fit that diverged, there are no steps to continue from
        start = before if self.warm_start and "losses/step" in before else None
        config = TrainConfig(
            self.learning_rate.optimizer(self.batch_size if artifact.facts.reduction == "sum" else 1),
            self.learning_rate.schedule(),
            "epoch",
            epochs=self.max_iter + (len(start["losses/train"]) if start is not None else 0),
            batch_size=self.batch_size,
            init="keep" if self.warm_start else "random",
            seed=self.seed,
            checkpoint=CheckpointConfig(minutes=None),
        )
        with _Bar(self.max_iter, self.verbose) as bar:
            result = train(artifact, config, data=data, report=lambda epoch: self._passed(epoch, bar), start=start)
        self._keep(result.tensors, validated=data.validation is not None)

    def _passed(self, epoch: Any, bar: _Bar) -> None:
        bar(epoch)

    def _keep(self, tensors: Mapping[str, np.ndarray], *, validated: bool) -> None:
        losses = tensors["losses/train"].tolist()
        share = self.validation_every
        every = max(1, int(self.max_iter * share if share < 1 else share))
        self.tensors_ = dict(tensors)
        self.train_losses_ = losses[-self.max_iter :]
        self.validation_losses_ = (
            tensors["losses/validation"][-self.max_iter :][every - 1 :: every].tolist() if validated else None
        )
        self.learning_rate.update_learning_rate(len(losses), losses)

    def _state(self, folder: str = "parameter") -> dict[str, np.ndarray]:
        """Return copies of the tensors of a folder by name, those of `weights_to_train` first.

        Raises:
            NotFittedError: before fit.
        """
        if not hasattr(self, "tensors_"):
            raise NotFittedError("There are trained weights once fit has run.", got="no fit yet", fix="Call fit(X, y).")
        found = {name: array.copy() for name, array in under(folder, self.tensors_).items()}
        first = [name for name in self.weights_to_train or () if name in found]
        return {name: found[name] for name in dict.fromkeys([*first, *found])}

    def _set(self, state: Mapping[str, Any], folder: str = "parameter") -> None:
        own = self._state(folder)
        for name, value in state.items():
            if name not in own:
                raise TrainError("A state names trained weights.", got=repr(name), fix=nearest(name, own))
            array = np.asarray(value.numpy() if hasattr(value, "numpy") else value, own[name].dtype)
            if array.shape != own[name].shape:
                raise TrainError(
                    "A weight keeps its shape.",
                    got=f"{array.shape} for {name!r}",
                    fix=f"Give an array of shape {own[name].shape}.",
                )
            self.tensors_[f"{folder}/{name}"] = array.copy()

    @abstractmethod
    def _gradients(self) -> Artifact:
        """Return the gradient model that is trained."""

    def save_onnx_graph(self, folder: Any, prefix: str | None = None, suffix: str | None = None) -> dict[str, Any]:
        """Write the model and its gradient graph into a folder (`bytes` instead of a folder returns them as bytes).

        Raises:
            ConfigError: the folder does not exist.
        """
        graphs = {"model_onnx": self.model_onnx, "gradient_onnx": self._gradients().model}
        return saved(graphs, folder, f"{prefix or ''}{type(self).__name__}{suffix or ''}")

    def get_trained_onnx(self, model: onnx.ModelProto | None = None) -> onnx.ModelProto:
        """Return the model with trained weights.

        Args:
            model: another graph with initializers of those names, such as the one before the loss was added.

        Raises:
            NotFittedError: before fit.
            TrainError: the graph has none of them.
        """
        state = self._state()
        target = self.model_onnx if model is None else model
        names = [t.name for t in target.graph.initializer]
        if not set(state) & set(names):
            raise TrainError(
                "The model has initializers of the trained weights' names.",
                got=f"{', '.join(names) or 'none'}",
                fix=f"Give a graph with {', '.join(state)}.",
            )
        return with_parameters(target, state)


class _Bar:
    """A progress bar of passes, where `verbose` asks for one."""

    def __init__(self, total: int, verbose: int) -> None:
        self._total, self._verbose = total, verbose
        self._bar: Any = None

    def __enter__(self) -> _Bar:
        if self._verbose > 0:
            from tqdm import tqdm

            self._bar = tqdm(total=self._total)
        return self

    def __call__(self, epoch: Any) -> None:
        if self._bar is None:
            return
        if self._verbose > 1:
            self._bar.set_description(f"loss={epoch.loss:.3g} lr={epoch.rate:.3g}")
        self._bar.update()

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def rows(names: Iterable[str], X: Any, y: Any, sample_weight: Any = None) -> Rows:
    """Return arrays (of several inputs, by name) as rows."""
    inputs = X if isinstance(X, Mapping) else {next(iter(names)): X}
    weights = None if sample_weight is None else np.asarray(sample_weight).reshape(-1)
    return Rows({name: np.asarray(array) for name, array in inputs.items()}, np.asarray(y), weights)
