"""What onnxcustom's two optimizer classes share: fit is the train stage, and the state is its tensors."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np
import onnx
from tqdm import tqdm

from ortpipe.artifact import Artifact, under
from ortpipe.compat.initializers import replace_initializers_into_onnx
from ortpipe.compat.learning_rates import LearningRateSGD
from ortpipe.compat.models import saved
from ortpipe.compat.parameters import Parameters
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConfigError, NotFittedError, TrainError, nearest
from ortpipe.stages.train.config import CheckpointConfig, TrainConfig
from ortpipe.stages.train.stage import train


class Estimator(Parameters, ABC):
    """Trains a model's weights; a subclass says what the loss is."""

    seed = 0  # of the first weights and the order of the rows

    model_onnx: onnx.ModelProto
    weights_to_train: Any
    max_iter: int
    training_optimizer_name: str
    batch_size: int
    learning_rate: LearningRateSGD
    warm_start: bool
    verbose: int
    validation_every: float
    train_losses_: list[float]
    validation_losses_: list[float] | None
    tensors_: dict[str, np.ndarray]  # of the train stage

    def _check(self) -> None:
        if self.training_optimizer_name != "SGDOptimizer":
            raise ConfigError(
                "training_optimizer_name must be 'SGDOptimizer'.",
                got=repr(self.training_optimizer_name),
                fix="Choose momentum by learning_rate=LearningRateSGDNesterov(…), other optimizers in train/optimizer.",
            )
        if not self.validation_every > 0:
            raise ConfigError(
                "validation_every must be positive.", got=self.validation_every, fix="Use 1 for every pass."
            )

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, X_val: Any = None, y_val: Any = None, use_numpy: bool = False
    ) -> Self:
        """Train.

        Args:
            X: features [N, …], or arrays by input name where the model has several.
            y: labels [N] or [N, K].
            sample_weight: row weights [N] or [N, 1], where the loss takes them.
            X_val: features to validate on; in a weighted loss these rows have weight 1.
            y_val: their labels.
            use_numpy: kept for its name: rows are read from the arrays either way.

        Raises:
            ConvergenceError: a loss or a weight is not finite.
            DataError: the arrays do not fit the model.
            LossError, TrainError: the loss does not fit the model.
            DeriveError: a weight does not exist, or the loss has no gradient for it.
        """
        artifact = self._gradients(y, sample_weight)
        facts = artifact.facts
        validation = None
        if X_val is not None:
            ones = np.ones(len(y_val)) if facts.sample_weight is not None else None
            validation = rows(facts.inputs, X_val, y_val, ones)
        self._train(artifact, Data(rows(facts.inputs, X, y, sample_weight), validation))
        return self

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
        with tqdm(total=self.max_iter, disable=self.verbose < 1) as bar:

            def report(epoch: Any) -> None:
                self._on_pass(epoch)
                if self.verbose > 1:
                    bar.set_description(f"loss={epoch.loss:.3g} lr={epoch.rate:.3g}")
                bar.update()

            result = train(artifact, config, data=data, report=report, start=start)
        self._keep(result.tensors, validated=data.validation is not None)

    def _on_pass(self, epoch: Any) -> None:
        """Do nothing more about a pass over the rows."""

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
            raise NotFittedError(
                "There are no trained weights before fit has run.", got="no fit yet", fix="Call fit(X, y)."
            )
        state = {name: array.copy() for name, array in under(folder, self.tensors_).items()}
        first = [name for name in self.weights_to_train or () if name in state]
        return {name: state[name] for name in dict.fromkeys([*first, *state])}

    def _set(self, state: Mapping[str, Any], folder: str = "parameter") -> None:
        present = self._state(folder)
        for name, value in state.items():
            if name not in present:
                raise TrainError("A state must name trained weights.", got=repr(name), fix=nearest(name, present))
            array = np.asarray(value.numpy() if hasattr(value, "numpy") else value, present[name].dtype)
            if array.shape != present[name].shape:
                raise TrainError(
                    "A new weight must have the shape of the old one.",
                    got=f"{array.shape} for {name!r}",
                    fix=f"Give an array of shape {present[name].shape}.",
                )
            self.tensors_[f"{folder}/{name}"] = array.copy()

    @abstractmethod
    def _gradients(self, y: Any = None, sample_weight: Any = None) -> Artifact:
        """Return the gradient model that is trained, for labels and row weights as these."""

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
    """Return arrays (of several inputs, by name) as rows."""
    inputs = X if isinstance(X, Mapping) else {next(iter(names)): X}
    weights = None if sample_weight is None else np.asarray(sample_weight).reshape(-1)
    return Rows({name: np.asarray(array) for name, array in inputs.items()}, np.asarray(y), weights)
