"""OrtGradientForwardBackwardOptimizer: gradient descent on a forward model, with a chosen loss and penalty."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import onnx

from ortpipe.artifact import Artifact
from ortpipe.compat.devices import cpu
from ortpipe.compat.estimator import Estimator, rows
from ortpipe.compat.learning_losses import LearningLoss
from ortpipe.compat.learning_penalties import LearningPenalty
from ortpipe.compat.learning_rates import LearningRateSGD
from ortpipe.compat.models import artifact_of, exact, prepared, trained_by_default
from ortpipe.data.feeds import feeds
from ortpipe.errors import ConvergenceError, TrainError
from ortpipe.graph import query
from ortpipe.graph.check import finish
from ortpipe.graph.edit import keep_outputs, set_initializers
from ortpipe.graph.modes import to_inference
from ortpipe.runtime.session import Session
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive
from ortpipe.stages.penalty.config import PenaltyConfig
from ortpipe.stages.penalty.stage import penalty

FOLDERS = {"weight": "parameter", "grad": "optimizer/velocity"}


class OrtGradientForwardBackwardOptimizer(Estimator):
    """Minimises Σᵢ wᵢ·l(f(xᵢ), yᵢ) + penalty over the weights of a model f, as `OrtGradientOptimizer` does.

    The model's first float output is compared with the labels. It works in scikit-learn's searches: `score` is to be
    maximised, and parameters of parameters are set as `learning_rate__eta0`.
    The original scored rows in a random order, left the last one out, and took penalties off the weights regardless of
    the learning rate.

    Args:
        model_onnx: the forward model; it stays untouched.
        weights_to_train: names of float initializers, by default the weights, biases and embeddings that the output
            depends on.
        learning_loss: `square_error`, `absolute_error`, `elastic_error`, `log`, or a loss of `learning_losses.py`.
        enable_logging: log every pass, to the logger `ortpipe`.
        weight_name: any name: rows have weights (1 where fit is given none).
        learning_penalty: None, `elastic`, or a penalty of `learning_penalties.py`.
        exc: raise when training diverges; otherwise warn, and let weights and losses be nan.
        others: as in `OrtGradientOptimizer`; loss_output_name is kept for its name.

    Raises:
        ConfigError: an argument outside its range.

    >>> import numpy as np, onnx
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
    ...   g (float[N,1] X) => (float[N,1] y) <float[1,1] w = {0}> { y = MatMul(X, w) }''')
    >>> X = np.linspace(-1, 1, 20).reshape(-1, 1)
    >>> optimizer = OrtGradientForwardBackwardOptimizer(model, learning_rate=0.5).fit(X, 3 * X)
    >>> [w.round(3).tolist() for w in optimizer.get_state()], round(optimizer.score(X, 2 * X), 3)
    ([[[3.0]]], -0.368)

    Source: name, arguments and methods of onnxcustom's class.
    """

    def __init__(
        self,
        model_onnx: onnx.ModelProto,
        weights_to_train: Sequence[str] | None = None,
        loss_output_name: str = "loss",
        max_iter: int = 100,
        training_optimizer_name: str = "SGDOptimizer",
        batch_size: int = 10,
        learning_rate: Any = "SGD",
        device: Any = "cpu",
        warm_start: bool = False,
        verbose: int = 0,
        validation_every: float = 0.1,
        learning_loss: Any = "square_error",
        enable_logging: bool = False,
        weight_name: str | None = None,
        learning_penalty: Any = None,
        exc: bool = True,
    ) -> None:
        self.model_onnx, self.weights_to_train, self.loss_output_name = model_onnx, weights_to_train, loss_output_name
        self.max_iter, self.batch_size, self.warm_start, self.verbose = max_iter, batch_size, warm_start, verbose
        self.learning_rate, self.device = LearningRateSGD.select(learning_rate), cpu(device)
        self.training_optimizer_name, self.validation_every = training_optimizer_name, validation_every
        self.learning_loss = LearningLoss.select(learning_loss)
        self.learning_penalty = LearningPenalty.select(learning_penalty)
        self.enable_logging, self.weight_name, self.exc = enable_logging, weight_name, exc
        self._check()
        if weights_to_train is None:
            self.weights_to_train = list(self._forward().facts.parameters)

    @property
    def needs_grad(self) -> bool:
        """Whether the learning rate keeps velocities."""
        return self.learning_rate.needs_grad

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, X_val: Any = None, y_val: Any = None, use_numpy: bool = False
    ) -> Self:
        """Train as `OrtGradientOptimizer.fit` does; labels are 0 or 1 for the negative log loss.

        Raises:
            ConvergenceError: a loss or a weight is not finite, where `exc` says so.
        """
        self._pass_losses: list[float] = []
        try:
            return super().fit(X, y, self._row_weights(y, sample_weight), X_val, y_val)
        except ConvergenceError as error:
            if self.exc:
                raise
            self._diverged(self._gradients(y, sample_weight), error, validated=X_val is not None)
        return self

    def losses(self, X: Any, y: Any, sample_weight: Any = None) -> np.ndarray:
        """Return wᵢ·lᵢ of every row [N], in the rows' order, with the trained weights and without the penalty.

        Raises:
            NotFittedError: before fit.
            DataError: the arrays do not fit the model.
        """
        weights = self._row_weights(y, sample_weight)
        artifact = self._loss(y, weights)
        terms = _terms(artifact, self._state())
        [losses] = Session(terms).run(feeds(terms, artifact.facts, rows(artifact.facts.inputs, X, y, weights)))
        return losses.reshape(len(losses), -1).sum(axis=1)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return −Σ wᵢ·lᵢ / N, the higher the better."""
        losses = self.losses(X, y, sample_weight)
        return -float(losses.sum()) / len(losses)

    def get_state(self, kind: str = "weight") -> list[np.ndarray]:
        """Return the trained weights, or with `grad` their velocities, in the order of `weights_to_train`.

        Raises:
            NotFittedError: before fit.
            TrainError: another kind.
        """
        present = self._state(_folder(kind))
        return [present[name] for name in self.weights_to_train if name in present]

    def set_state(
        self, state: Sequence[Any], check_trained: bool = True, kind: str = "weight", zero: bool = False
    ) -> None:
        """Change the trained weights or their velocities, in the order of `weights_to_train`; None leaves one.

        Args:
            state: arrays.
            check_trained: kept for its name: there is a state once fit has run.
            kind: `weight` or `grad`.
            zero: set zeros of these shapes.

        Raises:
            NotFittedError: before fit.
            TrainError: another number of arrays, or another shape.
        """
        present = self._state(_folder(kind))
        if len(state) != len(self.weights_to_train):
            raise TrainError(
                "A state has one array per weight.",
                got=f"{len(state)} arrays",
                fix=f"Give those of {', '.join(self.weights_to_train)}.",
            )
        arrays = {k: v for k, v in zip(self.weights_to_train, state, strict=True) if v is not None and k in present}
        self._set({k: np.zeros_like(present[k]) if zero else v for k, v in arrays.items()}, _folder(kind))

    def _row_weights(self, y: Any, sample_weight: Any) -> Any:
        """Return the row weights: ones where there is an input of weights, and fit is given none."""
        return np.ones(len(y)) if sample_weight is None and self.weight_name is not None else sample_weight

    def _gradients(self, y: Any = None, sample_weight: Any = None) -> Artifact:
        loss = self._loss(y, sample_weight)
        terms = dict.fromkeys(loss.facts.parameters, self.learning_penalty.strengths())
        return derive(penalty(loss, PenaltyConfig(terms)), DeriveConfig(parameters=loss.facts.parameters))

    def _loss(self, y: Any, sample_weight: Any) -> Artifact:
        columns = np.shape(y)[1] if np.ndim(y) == 2 else 1
        weighted = sample_weight is not None or self.weight_name is not None
        forward = self.learning_loss.scored(self._forward(), columns)
        return add_loss(forward, AddLossConfig(self.learning_loss.stage_loss(), "sum", weighted))

    def _forward(self) -> Artifact:
        model = prepared(self.model_onnx)
        graph = model.graph
        initializers = list(graph.initializers)
        output = next((o for o in graph.outputs if o.dtype in query.FLOATS), None)
        if output is None:
            raise TrainError(
                "A loss needs a float output.", got="none in the model", fix="Export its values or raw scores."
            )
        keep_outputs(model, [str(output.name)])
        if (weights := self.weights_to_train) is None:
            weights = trained_by_default(graph, [output])
        return artifact_of(model, exact(weights, initializers, "initializer"))

    def _on_pass(self, epoch: Any) -> None:
        self._pass_losses.append(epoch.loss)
        if self.enable_logging:
            text = "[OrtGradientForwardBackwardOptimizer.fit] pass %d loss=%g lr=%g"
            logging.getLogger("ortpipe").info(text, epoch.number, epoch.loss, epoch.rate)

    def _diverged(self, artifact: Artifact, error: ConvergenceError, *, validated: bool) -> None:
        """Keep what is known of a training that diverged: its losses, then nan; weights of nan."""
        from sklearn.exceptions import ConvergenceWarning

        warnings.warn(str(error), ConvergenceWarning, stacklevel=3)
        losses = [*self._pass_losses, *[np.nan] * (self.max_iter - len(self._pass_losses))]
        initial = artifact.initializers
        weights = {f"parameter/{name}": np.full_like(initial[name], np.nan) for name in artifact.facts.parameters}
        self._keep(
            {
                **weights,
                "losses/train": np.array(losses),
                "losses/validation": np.full(len(losses), np.nan),
            },
            validated=validated,
        )


def _folder(kind: str) -> str:
    if kind not in FOLDERS:
        raise TrainError(
            "The kind of a state must be 'weight', or 'grad' for velocities.",
            got=repr(kind),
            fix="Use 'weight' or 'grad'.",
        )
    return FOLDERS[kind]


def _terms(artifact: Artifact, weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Return the graph of the terms [N, K] that the loss is the sum of, with these weights."""
    model = artifact.ir_model()
    node = query.value(model.graph, str(artifact.facts.loss)).producer()
    assert node is not None and node.inputs[0] is not None  # the ReduceSum that add_loss wrote
    keep_outputs(model, [str(node.inputs[0].name)])
    set_initializers(model, weights)
    to_inference(model)
    return finish(model)
