"""The losses of OrtGradientForwardBackwardOptimizer: those of the add_loss stage under onnxcustom's names."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import onnx
import onnx_ir as ir

from ortpipe.artifact import Artifact
from ortpipe.compat.learning_base import BaseLearningOnnx, run
from ortpipe.compat.models import artifact_of
from ortpipe.compat.parameters import by_name, warn_unused
from ortpipe.compat.unreduced_loss import unreduced_onnx_loss
from ortpipe.errors import ConfigError, LossError
from ortpipe.graph.core import query
from ortpipe.graph.core.builder import Builder
from ortpipe.graph.core.check import finish, parsed
from ortpipe.settings import Config
from ortpipe.stages.add_loss.config import AddLossConfig
from ortpipe.stages.add_loss.losses import Loss, Scores
from ortpipe.stages.add_loss.losses.elastic import Elastic
from ortpipe.stages.add_loss.losses.l1 import L1
from ortpipe.stages.add_loss.losses.l2 import L2
from ortpipe.stages.add_loss.losses.log import Log
from ortpipe.stages.add_loss.stage import add_loss
from ortpipe.stages.derive.config import DeriveConfig
from ortpipe.stages.derive.stage import derive

OPSETS = (18, 21)  # the oldest and newest opset of the graphs of losses


class BaseLearningLoss(BaseLearningOnnx):
    """Base of losses over rows, Σᵢ wᵢ·lᵢ, and their gradients by the predictions.

    A user's own subclass sets `loss_grad_onnx_` in `build_onnx_function`, a graph from labels X1, predictions X2 and an
    optional `weight` to the loss Y and its gradient Y_grad; or it overrides `loss_gradient` and `loss_scores`.
    """

    loss_grad_onnx_: onnx.ModelProto
    loss_score_onnx_: onnx.ModelProto

    def build_onnx_score_function(self, opset: int, device: Any, weight_name: str | None) -> None:
        """Build the function of every row's loss from that of the loss."""
        self.loss_score_onnx_ = unreduced_onnx_loss(self.loss_grad_onnx_, "Y")

    def loss_gradient(self, device: Any, expected: Any, predicted: Any, weight: Any = None) -> tuple[Any, Any]:
        """Return the loss [1] and its gradient [N, K] by the predictions, for labels [N, K] and row weights [N]."""
        loss, gradient = run(self.loss_grad_onnx_, {"X1": expected, "X2": predicted, "weight": weight})
        return loss, gradient

    def loss_scores(self, device: Any, expected: Any, predicted: Any, weight: Any = None) -> Any:
        """Return every row's loss [N, 1]."""
        [scores] = run(self.loss_score_onnx_, {"X1": expected, "X2": predicted, "weight": weight})
        return scores

    def scored(self, forward: Artifact, columns: int) -> Artifact:
        """Return a forward artifact with the task and scores that the loss needs, for labels of `columns` columns."""
        return forward

    @staticmethod
    def select(class_name: Any, **kwargs: Any) -> BaseLearningLoss:
        """Return a loss: an object as it is, or one by name.

        Raises:
            ConfigError: an unknown name.

        >>> BaseLearningLoss.select("elastic", l1_weight=0.1)
        ElasticLearningLoss(l1_weight=0.1, l2_weight=0.5)
        """
        members: dict[type, Sequence[str]] = {
            SquareLearningLoss: ("square_error", "square"),
            AbsoluteLearningLoss: ("absolute_error", "absolute"),
            ElasticLearningLoss: ("elastic_error", "elastic"),
            NegLogLearningLoss: ("log", "neglog", "logloss"),
        }
        return by_name(BaseLearningLoss, members, class_name, **kwargs)


class StageLoss(BaseLearningLoss):
    """Base of losses of the add_loss stage."""

    _loss: ClassVar[type[Any]]  # the add_loss stage's loss, with the same settings

    def stage_loss(self) -> Loss:
        """Return the loss of the add_loss stage.

        >>> SquareLearningLoss().stage_loss(), ElasticLearningLoss(0.1).stage_loss()
        (HalfSquare(), Elastic(l1_weight=0.1, l2_weight=0.5))
        """
        return self._loss(**self.get_params())

    def score_loss(self) -> Loss:
        """Return the loss for scoring rows."""
        return self.stage_loss()

    def build_onnx_function(self, opset: int, device: Any, weight_name: str | None = None) -> None:
        """Build the ONNX functions of the loss with its gradient, and of every row's loss."""
        opset = min(max(opset, OPSETS[0]), OPSETS[1])
        weighted = weight_name is not None
        parts: list[Any] = [self.stage_loss(), self.score_loss()]
        loss, score = (_function(part, opset, weighted) for part in parts)
        self.loss_grad_onnx_ = onnx.load_from_string(loss)
        self.loss_score_onnx_ = onnx.load_from_string(_scores(score))


@dataclass(frozen=True)
class HalfSquare(Config):
    """Half the squared error, whose gradient is ŷ − y."""

    tasks: ClassVar[tuple[str, ...]] = L2.tasks

    def __call__(self, op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
        """Return ½·(ŷ − y)² [N, K]."""
        return op.Mul(L2()(op, label, scores), op.like(0.5, scores.prediction))


class SquareLearningLoss(StageLoss):
    """l = ½·Σₖ (ŷₖ − yₖ)², with the gradient ŷ − y; rows are scored by Σₖ (ŷₖ − yₖ)², as in the original."""

    _loss = HalfSquare

    def score_loss(self) -> Loss:
        return L2()


class AbsoluteLearningLoss(StageLoss):
    """l = Σₖ |ŷₖ − yₖ|. The original's gradient had the opposite sign."""

    _loss = L1


class ElasticLearningLoss(StageLoss):
    """l = Σₖ l1_weight·|ŷₖ − yₖ| + l2_weight·(ŷₖ − yₖ)². The original's first term had the opposite gradient.

    Raises:
        ConfigError: a weight is negative, or both are 0.
    """

    _loss = Elastic

    def __init__(self, l1_weight: float = 0.5, l2_weight: float = 0.5) -> None:
        self.l1_weight, self.l2_weight = l1_weight, l2_weight
        self.stage_loss()  # checks the settings


class NegLogLearningLoss(StageLoss):
    """l = −y·log σ(s) − (1 − y)·log(1 − σ(s)) for raw scores s and labels y in {0, 1}.

    s is the model's output [N, 1], or the second column of [N, 2], the score of class 1; with labels [N, K] for K > 1
    scores every column has its own label. The loss is exact for every s: the original clipped σ(s) at `eps`, and
    compared both columns of [N, 2] with the one label.

    Args:
        eps: not used.
        probability_function: `sigmoid`.

    Raises:
        ConfigError: an unknown function.

    >>> NegLogLearningLoss()
    NegLogLearningLoss(eps=1e-05, probability_function='sigmoid')
    """

    def __init__(self, eps: float = 1e-5, probability_function: str = "sigmoid") -> None:
        if probability_function != "sigmoid":
            raise ConfigError(
                "probability_function must be 'sigmoid'.", got=repr(probability_function), fix="Use 'sigmoid'."
            )
        self.eps, self.probability_function = eps, probability_function
        self.stage_loss()  # checks eps
        warn_unused(self, eps=1e-5)

    def stage_loss(self) -> Loss:
        return Log(self.eps)

    def scored(self, forward: Artifact, columns: int) -> Artifact:
        """Return the artifact as a classifier with raw scores."""
        facts, model = forward.facts, forward.ir_model()
        score = query.value(model.graph, facts.prediction)
        if columns > 1:
            return Artifact(forward.model, replace(facts, task="multilabel", logits=facts.prediction))
        width = score.shape[-1] if score.shape is not None and score.shape.rank() == 2 else 1
        if width not in (1, 2):
            raise LossError(
                "The negative log loss of one label needs one or two scores per row.",
                got=f"{facts.prediction!r} with {width} columns",
                fix="Give labels of as many columns, or choose an output with raw scores of two classes.",
            )
        if width == 2:
            op = Builder(model.graph, "score")
            second = op.Gather(score, [1], axis=1)
            second.shape = ir.Shape(["N", 1])
            model.graph.outputs.append(second)
            score = second
        name = str(score.name)
        facts = replace(facts, task="binary", classes=(0, 1), prediction=name, logits=name, outputs=(name,))
        return Artifact(model, facts)


@functools.cache
def _scores(loss: bytes) -> bytes:
    return unreduced_onnx_loss(onnx.load_from_string(loss), "Y").SerializeToString(deterministic=True)


@functools.cache
def _function(loss: Any, opset: int, weighted: bool) -> bytes:
    """Return the ONNX function (X1, X2, weight) → (Y, Y_grad) of a loss, for labels and predictions in float32."""
    log = isinstance(loss, Log)
    task: dict[str, Any] = {"task": "binary", "classes": (0, 1), "logits": "score"} if log else {}
    table = f"float[N,{1 if log else 'K'}]"
    signature = f"{type(loss).__name__} ({table} X2) => ({table} score)"
    text = f'<ir_version: 10, opset_import: ["": {opset}]> {signature} {{ score = Identity(X2) }}'
    forward = artifact_of(parsed(onnx.parser.parse_model(text)), (), **task)
    loss_model = add_loss(forward, AddLossConfig(loss, "sum", weighted, "total", "X1", "weight"))
    derived = derive(loss_model, DeriveConfig(parameters=(), inputs=("X2",), forward_outputs=False))
    model = derived.ir_model()
    graph, facts = model.graph, derived.facts
    read = {str(value.name): value for value in graph.inputs}
    graph.inputs[:] = [read[name] for name in ("X1", "X2", "weight") if name in read]
    op = Builder(graph, "loss")
    total = query.value(graph, str(facts.loss))
    flat = op.Reshape(total, [-1])
    flat.shape = ir.Shape([1])
    gradient = query.value(graph, facts.input_gradients["X2"])
    graph.outputs[:] = [op.rename(flat, "Y"), op.rename(gradient, "Y_grad")]
    return finish(model).SerializeToString(deterministic=True)
