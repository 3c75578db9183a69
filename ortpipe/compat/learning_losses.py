"""The losses that OrtGradientForwardBackwardOptimizer takes: those of the add_loss stage under onnxcustom's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ortpipe.artifact import Artifact
from ortpipe.compat.parameters import Parameters, by_name
from ortpipe.errors import ConfigError, LossError
from ortpipe.graph import query
from ortpipe.graph.builder import Builder
from ortpipe.stages.add_loss.losses import Loss
from ortpipe.stages.add_loss.losses.elastic import Elastic
from ortpipe.stages.add_loss.losses.l1 import L1
from ortpipe.stages.add_loss.losses.l2 import L2
from ortpipe.stages.add_loss.losses.log import Log


class LearningLoss(Parameters):
    """A loss of rows, Σᵢ wᵢ·lᵢ; one of its subclasses."""

    _loss: ClassVar[type[Any]]  # of the add_loss stage, with the same settings

    def stage_loss(self) -> Loss:
        """Return the loss of the add_loss stage.

        >>> SquareLearningLoss().stage_loss(), ElasticLearningLoss(0.1).stage_loss()
        (L2(), Elastic(l1_weight=0.1, l2_weight=0.5))
        """
        loss: Loss = self._loss(**self.get_params())
        return loss

    def scored(self, forward: Artifact, columns: int) -> Artifact:
        """Return a forward artifact as the loss reads it: its task and its scores, for labels of so many columns."""
        return forward

    @staticmethod
    def select(class_name: Any, **kwargs: Any) -> LearningLoss:
        """Return a loss itself, or the one of a name.

        Raises:
            ConfigError: another name.

        >>> LearningLoss.select("elastic", l1_weight=0.1)
        ElasticLearningLoss(l1_weight=0.1, l2_weight=0.5)
        """
        members: dict[type[LearningLoss], Sequence[str]] = {
            SquareLearningLoss: ("square_error", "square"),
            AbsoluteLearningLoss: ("absolute_error", "absolute"),
            ElasticLearningLoss: ("elastic_error", "elastic"),
            NegLogLearningLoss: ("log", "neglog", "logloss"),
        }
        return by_name(LearningLoss, members, class_name, **kwargs)


class SquareLearningLoss(LearningLoss):
    """l = Σₖ (ŷₖ − yₖ)²."""

    _loss = L2


class AbsoluteLearningLoss(LearningLoss):
    """l = Σₖ |ŷₖ − yₖ|."""

    _loss = L1


class ElasticLearningLoss(LearningLoss):
    """l = Σₖ l1_weight·|ŷₖ − yₖ| + l2_weight·(ŷₖ − yₖ)².

    Raises:
        ConfigError: a weight is negative, or both are 0.
    """

    _loss = Elastic

    def __init__(self, l1_weight: float = 0.5, l2_weight: float = 0.5) -> None:
        self.l1_weight, self.l2_weight = l1_weight, l2_weight
        self.stage_loss()  # checks them


class NegLogLearningLoss(LearningLoss):
    """l = −y·log σ(s) − (1 − y)·log(1 − σ(s)) of raw scores s and labels y in {0, 1}.

    s is the model's output [N, 1], or the second column of [N, 2], the score of class 1; with labels [N, K] for K > 1
    scores every column has a label of its own. The loss is exact for every s: the original cut σ(s) at `eps`, and
    compared both columns of [N, 2] with the one label.

    Args:
        eps: kept for its name.
        probability_function: `sigmoid`.

    Raises:
        ConfigError: another function.

    >>> NegLogLearningLoss()
    NegLogLearningLoss(eps=1e-05, probability_function='sigmoid')
    """

    def __init__(self, eps: float = 1e-5, probability_function: str = "sigmoid") -> None:
        if probability_function != "sigmoid":
            raise ConfigError(
                "Scores become probabilities by the sigmoid.", got=repr(probability_function), fix="Use 'sigmoid'."
            )
        self.eps, self.probability_function = eps, probability_function
        self.stage_loss()  # checks eps

    def stage_loss(self) -> Loss:
        """Return the loss of the add_loss stage."""
        return Log(self.eps)

    def scored(self, forward: Artifact, columns: int) -> Artifact:
        """Return the artifact as a classifier by its raw scores."""
        facts, model = forward.facts, forward.ir_model()
        score = query.value(model.graph, facts.prediction)
        if columns > 1:
            return Artifact(forward.model, replace(facts, task="multilabel", logits=facts.prediction))
        width = score.shape[-1] if score.shape is not None and score.shape.rank() == 2 else 1
        if width not in (1, 2):
            raise LossError(
                "The negative log loss of one label reads one or two scores per row.",
                got=f"{facts.prediction!r} with {width} columns",
                fix="Give labels of as many columns, or choose an output with raw scores of two classes.",
            )
        if width == 2:
            op = Builder(model.graph, "score")
            second = op.Gather(score, op.const(np.array([1])), axis=1)
            second.type, second.shape = score.type, ir.Shape(["N", 1])
            model.graph.outputs.append(second)
            score = second
        name = str(score.name)
        facts = replace(facts, task="binary", classes=(0, 1), prediction=name, logits=name, outputs=(name,))
        return Artifact(model, facts)
