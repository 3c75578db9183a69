"""OrtGradientOptimizer: gradient descent on a model that contains its loss."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ortpipe import Artifact, DeriveConfig, derive
from ortpipe.compat.estimator import Estimator, Tensors
from ortpipe.compat.models import artifact_of, exact, labels_as_table, prepared
from ortpipe.compat.parameters import check_known
from ortpipe.errors import ConfigError, ConvergenceError, TrainError
from ortpipe.facts_json import read_metadata
from ortpipe.graph import Builder, finish, keep_outputs, query
from ortpipe.runtime import Session
from ortpipe.stages import build_step

WEIGHT = "weight"  # the default name of the input for row weights


@dataclass(eq=False, repr=False)
class OrtGradientOptimizer(Estimator):
    """Minimises a model's loss output L: θ ← θ − (ηₜ / B)·∂L/∂θ for batches of B rows, in max_iter passes.

    The loss is a sum over the rows of a batch, as from `add_loss_output`, except for its log loss, a mean: there a step
    divides the mean by B once more, as the original does. B is `batch_size`, also for a partial batch or fewer rows.
    Labels and row weights are the inputs that the forward outputs do not depend on. Fit runs the train stage: every row
    is used once per pass, the rate has one value per pass, and the same arrays and attribute `seed` (0) give the same
    weights.
    The original never used the last row, could not use momentum, validated weighted losses with a wrong input, found no
    loss of another name than `loss`, and restarted a warm start; its random weights were N(0, 1), here they are the
    train stage's.

    Args:
        model_onnx: the loss model; it stays untouched.
        weights_to_train: names of float initializers.
        loss_output_name: the loss; if no output is named `loss`, the first output by default.
        max_iter: passes over the rows.
        training_optimizer_name: `SGDOptimizer`.
        batch_size: rows per step, B.
        learning_rate: `SGD`, `Nesterov`, a number η₀, or a `LearningRateSGD`.
        device: `cpu`.
        warm_start: continue from the previous fit (m, then n passes equal m + n at once, bit by bit), the first time
            from the model's weights; otherwise every fit starts from random ones.
        verbose: 1 shows a progress bar, 2 losses and rates in it.
        validation_every: passes between two validations, or below 1 their share of `max_iter`.
        saved_gradient: a file that fit writes the gradient graph to; the graph of a complete step goes to the file of
            this name with `.training.onnx` appended.
        sample_weight_name: the input for row weights, if there are two inputs besides X; by default the one of
            `add_loss_output`, or `weight`.

    Raises:
        ConfigError: an argument outside its range.

    After `fit`, `train_losses_` holds the mean loss per row of each pass of that fit (and inf for one that diverged),
    `validation_losses_` that of the validation rows; `train_session_` runs the gradient graph.

    >>> import numpy as np, onnx
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
    ...   g (float[N,1] X, float[N,1] label) => (float loss, float[N,1] y) <float[1,1] w = {0}> {
    ...     y = MatMul(X, w) e = Sub(y, label) s = Mul(e, e) loss = ReduceSum<keepdims=0>(s) }''')
    >>> X = np.linspace(-1, 1, 20).reshape(-1, 1)
    >>> optimizer = OrtGradientOptimizer(model, ["w"], learning_rate=0.5).fit(X, 3 * X)
    >>> optimizer.get_state()["w"].round(3).tolist(), len(optimizer.train_losses_)
    ([[3.0]], 100)

    Source: name, arguments and methods of onnxcustom's class.
    """

    saved_gradient: str | Path | None = None
    sample_weight_name: str = WEIGHT

    def __post_init__(self) -> None:
        super().__post_init__()
        is_custom = not self.learning_rate.update_weights.__module__.startswith("ortpipe.")
        if self.learning_rate.needs_grad and is_custom:
            raise ConfigError(
                "A learning rate with its own velocity updates needs OrtGradientForwardBackwardOptimizer.",
                got=repr(self.learning_rate),
                fix="Train with that class, or take a LearningRateSGDNesterov.",
            )

    @functools.cached_property
    def train_session_(self) -> Session:
        """A session of the gradient graph."""
        self._state()
        return Session(self._gradients().model)

    def get_state(self) -> dict[str, np.ndarray]:
        """Return copies of the trained weights by name; NotFittedError: before fit."""
        return self._state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Set trained weights; a warm start continues from them, with the velocities of before.

        Raises:
            NotFittedError: before fit.
            TrainError: no such weight, or another shape.
        """
        self._set(state)

    def _gradients(self, y: Any = None, sample_weight: Any = None) -> Artifact:
        weights = exact(self.weights_to_train, [t.name for t in self.model_onnx.graph.initializer], "initializer")
        return derive(self._loss_model(weights, np.shape(y)), DeriveConfig(parameters=weights))

    def _begin(self, artifact: Artifact) -> None:
        super()._begin(artifact)
        if self.saved_gradient is not None:
            step = finish(ir.Model(build_step(artifact, self._config(self.max_iter)).graph, ir_version=10))
            for path, model in ((self.saved_gradient, artifact.model), (f"{self.saved_gradient}.training.onnx", step)):
                Path(path).write_bytes(model.SerializeToString(deterministic=True))

    def _diverged(self, error: ConvergenceError, done: int, *, validated: bool) -> None:
        try:
            super()._diverged(error, done, validated=validated)
        finally:
            self.train_losses_.append(np.inf)

    def _keep(self, tensors: Tensors, done: int, *, validated: bool) -> None:
        super()._keep(tensors, done, validated=validated)
        self.validation_losses_ = self.validation_losses_ or []

    def _loss_model(self, weights: Sequence[str], labels: Sequence[int]) -> Artifact:
        """Return the graph of the scalar loss for labels of this shape, with the roles of its inputs as facts."""
        model = prepared(self.model_onnx, any_rows=True)
        loss = query.value(model.graph, self._loss_name())
        inputs, label, weight = self._roles(model.graph, loss)
        labels_as_table(model.graph, label, labels)
        if loss.shape is None or loss.shape.rank():
            op = Builder(model.graph, "loss")
            scalar = op.ReduceSum(loss, keepdims=0)
            scalar.shape = ir.Shape([])
            model.graph.outputs.append(op.rename(scalar, f"{loss.name}_scalar"))
            loss = scalar
        keep_outputs(model, [str(loss.name)])
        return artifact_of(
            model,
            weights,
            inputs=inputs,
            outputs=(loss.name,),
            label=label,
            sample_weight=weight,
            loss=loss.name,
            reduction="mean" if read_metadata(self.model_onnx).get("reduction") == "mean" else "sum",
        )

    def _loss_name(self) -> str:
        names = [o.name for o in self.model_onnx.graph.output]
        if self.loss_output_name == "loss" and "loss" not in names:
            return names[0]
        check_known(self.loss_output_name, names, "loss_output_name must be an output of the model.", TrainError)
        return self.loss_output_name

    def _roles(self, graph: ir.Graph, loss: ir.Value) -> tuple[tuple[str, ...], str, str | None]:
        """Return the data inputs, and the label and row weights, which the forward outputs do not depend on."""
        data_inputs = query.data_inputs(graph)
        read = query.ancestors(o for o in graph.outputs if o is not loss)
        names = [str(v.name) for v in data_inputs]
        inputs = [str(v.name) for v in data_inputs if v in read] or names[:1]
        loss_inputs = [name for name in names if name not in inputs]
        recorded_name = read_metadata(self.model_onnx).get("sample_weight")
        weight = (
            self.sample_weight_name
            if self.sample_weight_name != WEIGHT or recorded_name not in loss_inputs
            else recorded_name
        )
        if weight not in loss_inputs:
            if weight != WEIGHT or len(loss_inputs) == 2:
                check_known(weight, loss_inputs, "sample_weight_name must be an input of the model.", TrainError)
            weight = None
        labels = [name for name in loss_inputs if name != weight]
        if len(labels) != 1:
            raise TrainError(
                "Besides X, a loss model must have one label input, and may have one for row weights.",
                got=f"inputs {', '.join(names)}",
                fix="Build it with add_loss_output, and name the weights with sample_weight_name.",
            )
        return tuple(inputs), labels[0], weight
