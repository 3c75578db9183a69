"""OrtGradientForwardBackwardOptimizer: gradient descent on a forward model, with a chosen loss and penalty."""

import functools
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ortpipe import AddLossConfig, Artifact, Data, DeriveConfig, Loss, PenaltyConfig, add_loss, derive, penalty
from ortpipe.compat.devices import array_of
from ortpipe.compat.estimator import Estimator, Report, Tensors, rows
from ortpipe.compat.forward_backward import (
    OrtGradientForwardBackward,
    OrtGradientForwardBackwardFunction,
    Tensor,
)
from ortpipe.compat.functions import function_onnx_graph
from ortpipe.compat.initializers import get_onnx_opset
from ortpipe.compat.learning_base import is_own
from ortpipe.compat.learning_terms import BaseLearningLoss, BaseLearningPenalty, ElasticLearningPenalty
from ortpipe.compat.models import artifact_of, as_table, exact, prepared, trained_by_default
from ortpipe.compat.parameters import check_known, warn_unused
from ortpipe.compat.python_loop import LABEL, WEIGHT, Parts, rows_of, train_in_python
from ortpipe.data.feeds import feeds
from ortpipe.errors import ConvergenceError, TrainError
from ortpipe.graph import finish, keep_outputs, query, set_initializers, to_inference
from ortpipe.runtime import Session

FOLDERS = {"weight": "parameter", "grad": "optimizer/velocity"}


@dataclass(eq=False, repr=False)
class OrtGradientForwardBackwardOptimizer(Estimator):
    """Minimises Σᵢ wᵢ·l(f(xᵢ), yᵢ) + penalty over the weights of a model f, as `OrtGradientOptimizer` does.

    The model's first float output is compared with the labels. It works in scikit-learn's searches: `score` is to be
    maximised, and nested parameters are set as `learning_rate__eta0`.
    A loss, penalty or learning rate of a user's own class works, too: training then goes batch by batch in Python, in
    the same order of rows. Steps are divided by B = `batch_size`, also for a partial batch or fewer rows.
    The original scored rows in a random order, left the last one out, and subtracted penalties from the weights
    regardless of the learning rate.

    Args:
        model_onnx: the forward model; it stays untouched.
        weights_to_train: names of float initializers, by default the weights, biases and embeddings that the output
            depends on.
        learning_loss: `square_error`, `absolute_error`, `elastic_error`, `log`, or a loss of `learning_terms.py`.
        enable_logging: log every pass, to the logger `ortpipe`.
        weight_name: any name: rows have weights (1 if fit gets none).
        learning_penalty: None, `elastic`, or a penalty of `learning_terms.py`.
        exc: raise when training diverges; otherwise warn, and set weights and losses to nan.
        others: as in `OrtGradientOptimizer`; loss_output_name is not used.

    Raises:
        ConfigError: an argument outside its range.

    >>> import numpy as np, onnx
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
    ...   g (float[N,1] X) => (float[N,1] y) <float[1,1] w = {0}> { y = MatMul(X, w) }''')
    >>> X = np.linspace(-1, 1, 20).reshape(-1, 1)
    >>> optimizer = OrtGradientForwardBackwardOptimizer(model, learning_rate=0.5).fit(X, 3 * X)
    >>> [w.round(3).tolist() for w in optimizer.get_state()], round(optimizer.score(X, 2 * X), 3)
    ([[[3.0]]], -0.368)

    After `fit`, `validation_losses_` is None without validation rows, `train_session_` an `OrtGradientForwardBackward`
    of the model, `train_function_` its function; `learning_loss.loss_grad_onnx_` and the like are ONNX functions.

    Source: name, arguments and methods of onnxcustom's class.
    """

    weights_to_train: Any = None  # initializers, or None for those trained by default
    learning_loss: Any = "square_error"
    enable_logging: bool = False
    weight_name: str | None = None
    learning_penalty: Any = None
    exc: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.learning_loss = BaseLearningLoss.select(self.learning_loss)
        self.learning_penalty = BaseLearningPenalty.select(self.learning_penalty)
        warn_unused(self, loss_output_name="loss")
        if self.weights_to_train is None:
            self.weights_to_train = list(self._forward().facts.parameters)
        self.build_onnx_function()

    def build_onnx_function(self) -> None:
        """Build the ONNX functions of the loss, the penalty and the learning rate."""
        opset = get_onnx_opset(self.model_onnx)
        self.learning_loss.build_onnx_function(opset, self.device, self.weight_name)
        for part in (self.learning_rate, self.learning_penalty):
            part.build_onnx_function(opset, self.device, len(self.weights_to_train))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.build_onnx_function()

    @functools.cached_property
    def train_session_(self) -> OrtGradientForwardBackward:
        """The model's forward and backward pass."""
        self._state()
        return OrtGradientForwardBackward(self.model_onnx, self.weights_to_train)

    @functools.cached_property
    def train_function_(self) -> OrtGradientForwardBackwardFunction:
        """The function of `train_session_`."""
        return self.train_session_.new_instance()

    @property
    def needs_grad(self) -> bool:
        """Whether the learning rate keeps velocities."""
        return self.learning_rate.needs_grad

    def losses(self, X: Any, y: Any, sample_weight: Any = None) -> np.ndarray:
        """Return wᵢ·lᵢ of every row [N], in order, with the trained weights and without the penalty.

        Raises:
            NotFittedError: before fit.
            DataError: the arrays do not fit the model.
        """
        weights = self._row_weights(y, sample_weight)
        if is_own(self.learning_loss):
            forward = self.learning_loss.scored(self._forward(), _columns(y))
            feed = rows_of(forward, rows(forward.facts.inputs, X, y, weights))
            session = Session(self.get_trained_onnx(forward.model))
            [predicted] = session.run({name: feed[name] for name in forward.facts.inputs}, [forward.facts.prediction])
            scores = self.learning_loss.loss_scores(self.device, feed[LABEL], predicted.view(Tensor), feed.get(WEIGHT))
            return array_of(scores).reshape(len(predicted), -1).sum(axis=1)
        artifact = self._loss(y, weights, self.learning_loss.score_loss())
        terms = _terms(artifact, self._state())
        [losses] = Session(terms).run(feeds(terms, artifact.facts, rows(artifact.facts.inputs, X, y, weights)))
        return losses.reshape(len(losses), -1).sum(axis=1)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return −Σ wᵢ·lᵢ / N, the higher the better."""
        losses = self.losses(X, y, sample_weight)
        return -float(losses.sum()) / len(losses)

    def get_state(self, kind: str = "weight") -> list[Tensor]:
        """Return the trained weights, or with `grad` their velocities, in the order of `weights_to_train`.

        Raises:
            NotFittedError: before fit.
            TrainError: an unknown kind.
        """
        present = self._state(_folder(kind))
        return [present[name].view(Tensor) for name in self.weights_to_train if name in present]

    def get_full_state(self, kind: Any = "weight") -> list[Any]:
        """Return None for every input, then the state; for a list of kinds, a list of these."""
        if isinstance(kind, list):
            return [self.get_full_state(one_kind) for one_kind in kind]
        return [*[None] * len(self.train_session_.input_names), *self.get_state(kind)]

    def set_state(
        self, state: Sequence[Any], check_trained: bool = True, kind: str = "weight", zero: bool = False
    ) -> None:
        """Set the trained weights or their velocities, in the order of `weights_to_train`; None keeps a value.

        Args:
            state: arrays; also as `get_full_state` returns them.
            check_trained: ignored; a state exists once fit has run.
            kind: `weight` or `grad`.
            zero: set zeros of these shapes.

        Raises:
            NotFittedError: before fit.
            TrainError: the wrong number of arrays, or a wrong shape.
        """
        present = self._state(_folder(kind))
        inputs = len(state) - len(self.weights_to_train)
        if inputs > 0 and inputs == len(self.train_session_.input_names):
            state = state[inputs:]
        if len(state) != len(self.weights_to_train):
            rule, fix = "A state must have one array per weight.", f"Give those of {', '.join(self.weights_to_train)}."
            raise TrainError(rule, got=f"{len(state)} arrays", fix=fix)
        arrays = {k: v for k, v in zip(self.weights_to_train, state, strict=True) if v is not None and k in present}
        self._set({k: np.zeros_like(present[k]) if zero else v for k, v in arrays.items()}, _folder(kind))

    def _row_weights(self, y: Any, sample_weight: Any) -> Any:
        """Return the row weights: ones if the loss has an input for them and fit gets none."""
        return np.ones(len(y)) if sample_weight is None and self.weight_name is not None else sample_weight

    @property
    def _parts(self) -> Parts:
        return Parts(self.learning_loss, self.learning_penalty, self.learning_rate)

    def _gradients(self, y: Any = None, sample_weight: Any = None) -> Artifact:
        """Return the gradient model; for training in Python, the forward model."""
        if self._parts.any_own:
            return self.learning_loss.scored(self._forward(), _columns(y))
        loss = self._loss(y, sample_weight, self.learning_loss.stage_loss())
        is_elastic = isinstance(self.learning_penalty, ElasticLearningPenalty)
        terms = dict.fromkeys(loss.facts.parameters, self.learning_penalty.get_params() if is_elastic else {})
        return derive(penalty(loss, PenaltyConfig(terms)), DeriveConfig(parameters=loss.facts.parameters))

    def _tensors(self, artifact: Artifact, data: Data, passes: int, report: Report, start: Tensors | None) -> Tensors:
        if not self._parts.any_own:
            return super()._tensors(artifact, data, passes, report, start)
        return train_in_python(artifact, data, self._config(passes), self._parts, report, start)

    def _graphs(self) -> dict[str, Any]:
        fitted = {"train_session_": self.train_session_} if hasattr(self, "train_session_") else {}
        parts = {"learning_loss": self.learning_loss, "learning_penalty": self.learning_penalty}
        return {**super()._graphs(), **parts, "zero_onnx_": function_onnx_graph("zero"), **fitted}

    def _loss(self, y: Any, sample_weight: Any, loss: Loss) -> Artifact:
        weighted = sample_weight is not None or self.weight_name is not None
        return add_loss(self.learning_loss.scored(self._forward(), _columns(y)), AddLossConfig(loss, "sum", weighted))

    def _forward(self) -> Artifact:
        model = prepared(self.model_onnx, any_rows=True)
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
        table = str(as_table(graph, output).name)
        return artifact_of(model, exact(weights, initializers, "initializer"), outputs=(table,), prediction=table)

    def _on_pass(self, epoch: Any) -> None:
        if self.enable_logging:
            text = "[OrtGradientForwardBackwardOptimizer._iteration] pass %d loss=%g lr=%g"
            logging.getLogger("ortpipe").info(text, epoch.number, epoch.loss, epoch.rate)

    def _diverged(self, error: ConvergenceError, done: int, *, validated: bool) -> None:
        """Raise the error, or without `exc` warn, and keep the losses so far, then nan, and weights of nan."""
        if self.exc:
            super()._diverged(error, done, validated=validated)
        from sklearn.exceptions import ConvergenceWarning

        warnings.warn(str(self._as_arguments(error)), ConvergenceWarning, stacklevel=4)
        losses = np.full(self.max_iter, np.nan)
        finished_losses = error.tensors.get("losses/train", losses[:0])[done:]
        losses[: len(finished_losses)] = finished_losses
        nans = {k: np.full_like(v, np.nan) for k, v in error.tensors.items() if k.startswith("parameter/")}
        nans |= {"losses/train": losses, "losses/validation": np.full(len(losses), np.nan)}
        self._keep(nans, 0, validated=validated)


def _columns(y: Any) -> int:
    """Return the number of columns of labels as a table."""
    return int(np.prod(np.shape(y)[1:], dtype=int))


def _folder(kind: str) -> str:
    check_known(kind, FOLDERS, "The kind of a state must be 'weight', or 'grad' for velocities.", TrainError)
    return FOLDERS[kind]


def _terms(artifact: Artifact, weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Return the graph of the terms [N, K] whose sum is the loss, with these weights."""
    model = artifact.ir_model()
    node = query.value(model.graph, str(artifact.facts.loss)).producer()
    assert node is not None and node.inputs[0] is not None  # the ReduceSum that add_loss wrote
    keep_outputs(model, [str(node.inputs[0].name)])
    set_initializers(model, weights)
    to_inference(model)
    return finish(model)
