"""Losses, also row by row, and penalties under onnxcustom's names: those of the stages add_loss and penalty."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir

from ortpipe import AddLossConfig, Artifact, DeriveConfig, Loss, add_loss, derive
from ortpipe.compat.devices import array_of
from ortpipe.compat.functions import function_onnx_graph
from ortpipe.compat.learning_base import BaseLearningOnnx, put, run
from ortpipe.compat.models import artifact_of
from ortpipe.compat.parameters import by_name, check_known, warn_unused
from ortpipe.errors import LossError
from ortpipe.facts_json import read_metadata
from ortpipe.graph import Builder, at_opset, finish, having, keep_outputs, parsed, query, without_metadata
from ortpipe.settings import Config, NotNegative, checked
from ortpipe.stages import L1, L2, Elastic, Log, Scores

OPSETS = (18, 21)  # the oldest and newest opset of the graphs of losses
SAME = having("view") | {"Add"}  # a term that is added does not depend on the rows


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
        weighted, losses = weight_name is not None, list[Any]([self.stage_loss(), self.score_loss()])
        self.loss_grad_onnx_, score = (onnx.load_from_string(_function(loss, opset, weighted)) for loss in losses)
        self.loss_score_onnx_ = unreduced_onnx_loss(score, "Y")


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
        check_known(probability_function, ("sigmoid",), "probability_function must be 'sigmoid'.")
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


class BaseLearningPenalty(BaseLearningOnnx):
    """Base of penalties on the trained weights, which are added to the loss of every batch."""

    @abstractmethod
    def penalty_loss(self, device: Any, loss: Any, *weights: Any) -> Any:
        """Return the loss plus the penalties of these weights."""

    @abstractmethod
    def update_weights(self, n_bind: int, device: Any, statei: Any) -> Any:
        """Update weight number `n_bind` in place, before the gradient step."""

    @staticmethod
    def select(class_name: Any, **kwargs: Any) -> BaseLearningPenalty:
        """Return a penalty: an object as it is, or one by name.

        Raises:
            ConfigError: an unknown name.

        >>> BaseLearningPenalty.select(None), BaseLearningPenalty.select("elastic", l1=0.1)
        (NoLearningPenalty(), ElasticLearningPenalty(l1=0.1, l2=0.5))
        """
        members: dict[type, Sequence[str]] = {
            NoLearningPenalty: ("", "none"),
            ElasticLearningPenalty: ("elastic", "l1l2"),
        }
        return by_name(BaseLearningPenalty, members, class_name or "", **kwargs)


class NoLearningPenalty(BaseLearningPenalty):
    """No penalty."""

    def build_onnx_function(self, opset: int, device: Any, n_tensors: int = 1) -> None:
        """Do nothing: there is no ONNX function."""

    def penalty_loss(self, device: Any, loss: Any, *weights: Any) -> Any:
        return loss

    def update_weights(self, n_bind: int, device: Any, statei: Any) -> Any:
        return statei


class ElasticLearningPenalty(BaseLearningPenalty):
    """l1·Σ|w| + l2·Σw², added to the loss of every batch and differentiated with it.

    The original subtracted 2·l2·w + l1·sign(w) from the weights at every step, for any learning rate.

    Raises:
        ConfigError: a strength is negative.
    """

    def __init__(self, l1: float = 0.5, l2: float = 0.5) -> None:
        self.l1, self.l2 = checked(l1, NotNegative, "l1"), checked(l2, NotNegative, "l2")

    def build_onnx_function(self, opset: int, device: Any, n_tensors: int = 1) -> None:
        """Build the original's ONNX functions of the penalty and of its weight update."""
        terms = {"n_tensors": n_tensors, "loss_shape": (1,), "l1_weight": self.l1, "l2_weight": self.l2}
        self.penalty_onnx_ = function_onnx_graph("n_penalty_elastic_error", target_opset=opset, **terms)
        grad = function_onnx_graph("update_penalty_elastic_error", target_opset=opset, l1=self.l1, l2=self.l2)
        self.penalty_grad_onnx_ = grad

    def penalty_loss(self, device: Any, loss: Any, *weights: Any) -> Any:
        arrays = [array_of(weight) for weight in weights]
        return array_of(loss) + sum(self.l1 * abs(w).sum() + self.l2 * (w**2).sum() for w in arrays)

    def gradient(self, weight: np.ndarray) -> np.ndarray:
        """Return l1·sign(w) + 2·l2·w."""
        return self.l1 * np.sign(weight) + 2 * self.l2 * weight

    def update_weights(self, n_bind: int, device: Any, statei: Any) -> Any:
        """Subtract 2·l2·w + l1·sign(w) from a weight, as the original did; training uses the gradient instead."""
        weight = array_of(statei)
        return put(statei, weight - self.gradient(weight))


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


def unreduced_onnx_loss(onx: onnx.ModelProto, output_name: str = "score") -> onnx.ModelProto:
    """Return the model of every row's loss, [N, 1] in row order, from a loss model.

    The sum of the result (the mean, for a loss that averages) is the loss without its penalties, which belong to no
    row. Row weights are included.

    Args:
        onx: a model from `add_loss_output`, or any whose loss is a sum or mean over rows, times constants, plus terms
            that do not depend on the rows; it does not change.
        output_name: the only output (`<output_name>_1` if the model has a value of that name).

    Raises:
        LossError: the loss has another form.

    Where the original (`onnxcustom.utils.onnx_rewriter`) differs: it rejected the log loss, penalties and models with
    another reduction, and did not add up the columns of several outputs.

    >>> import numpy as np, onnx
    >>> from ortpipe.compat import add_loss_output
    >>> from ortpipe.runtime.session import Session
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 18]>
    ...   g (float[N,2] X) => (float[N,1] Y) <float[2,1] coef = {1, 2}> { Y = MatMul(X, coef) }''')
    >>> score = unreduced_onnx_loss(add_loss_output(model))
    >>> x, y = np.eye(2, dtype=np.float32), np.zeros((2, 1), np.float32)
    >>> Session(score).run({"X": x, "label": y})
    [array([[1.],
           [4.]], dtype=float32)]
    """
    model = parsed(at_opset(onx))
    graph = model.graph
    loss = query.value(graph, read_metadata(onx).get("loss", onx.graph.output[0].name))
    data = set(query.data_inputs(graph))
    reduction, after = _reduction(loss, data)
    op = Builder(graph, "score")
    terms = op.Reshape(reduction.inputs[0], [0, -1])  # [N, K]
    if reduction.op_type != "ReduceMean":  # sums, but not by a reduction, whose absence users check
        parts = (terms,) if reduction.op_type == "ReduceSum" else (terms, terms)
        rows = op.Einsum(*parts, equation=f"{','.join(['nk'] * len(parts))}->n")
        score = op.Unsqueeze(rows, [1])
    else:
        score = op.ReduceMean(terms, [1])
    for node, place in reversed(after):
        inputs = [score if i == place else x for i, x in enumerate(node.inputs)]
        score = getattr(op, node.op_type)(*inputs)
    count = reduction.inputs[0].shape[0] if reduction.inputs[0] is not None and reduction.inputs[0].shape else None
    score.type, score.shape = loss.type, ir.Shape([count, 1])
    op.rename(score, output_name)
    graph.outputs[:] = [score]
    keep_outputs(model, [str(score.name)])
    return without_metadata(finish(model))


def _reduction(loss: ir.Value, data: set[ir.Value]) -> tuple[ir.Node, list[tuple[ir.Node, int]]]:
    """Return the node that reduces the rows, and the factors after it, last first, with their data operand's index."""
    node, after = loss.producer(), list[tuple[ir.Node, int]]()
    while node is not None and not node.op_type.startswith("Reduce"):
        places = [i for i, x in enumerate(node.inputs) if x is not None and query.ancestors([x]) & data]
        is_factor = node.op_type in ("Div", "Mul", "Neg")
        if len(places) != 1 or not (is_factor or node.op_type in SAME):
            break
        if is_factor:
            after.append((node, places[0]))
        value = node.inputs[places[0]]
        node = value.producer() if value is not None else None
    if node is None or node.op_type not in ("ReduceMean", "ReduceSum", "ReduceSumSquare"):
        actual = "an input" if node is None else f"{node.op_type} at node {node.name or node.outputs[0].name!r}"
        rule = "A loss to be split by rows must be a sum or a mean over rows, times constants."
        raise LossError(rule, got=f"{loss.name!r}, which comes from {actual}", fix="Give a model from add_loss_output.")
    return node, after
