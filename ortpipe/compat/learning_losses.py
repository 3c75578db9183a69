"""The losses that OrtGradientForwardBackwardOptimizer takes: those of the add_loss stage under onnxcustom's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ortpipe.compat.parameters import Parameters
from ortpipe.errors import ConfigError, LossError, nearest

if TYPE_CHECKING:
    import onnx

    from ortpipe.artifact import Artifact
    from ortpipe.stages.add_loss.losses import Loss


class LearningLoss(Parameters, ABC):
    """A loss of rows, Σᵢ wᵢ·lᵢ; one of its subclasses."""

    @abstractmethod
    def stage_loss(self) -> Loss:
        """Return the loss of the add_loss stage."""

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
        if isinstance(class_name, LearningLoss):
            return class_name
        names = {
            SquareLearningLoss: ("square_error", "square"),
            AbsoluteLearningLoss: ("absolute_error", "absolute"),
            ElasticLearningLoss: ("elastic_error", "elastic"),
            NegLogLearningLoss: ("log", "neglog", "logloss"),
        }
        known = {name: cls for cls, aliases in names.items() for name in (cls.__name__, *aliases)}
        if class_name not in known:
            raise ConfigError("A loss is named.", got=repr(class_name), fix=nearest(str(class_name), known))
        return known[class_name](**kwargs)


class SquareLearningLoss(LearningLoss):
    """l = Σₖ (ŷₖ − yₖ)².

    >>> SquareLearningLoss().stage_loss()
    L2()
    """

    def stage_loss(self) -> Loss:
        """Return the loss of the add_loss stage."""
        from ortpipe.stages.add_loss.losses.l2 import L2

        return L2()


class AbsoluteLearningLoss(LearningLoss):
    """l = Σₖ |ŷₖ − yₖ|.

    >>> AbsoluteLearningLoss().stage_loss()
    L1()
    """

    def stage_loss(self) -> Loss:
        """Return the loss of the add_loss stage."""
        from ortpipe.stages.add_loss.losses.l1 import L1

        return L1()


class ElasticLearningLoss(LearningLoss):
    """l = Σₖ l1_weight·|ŷₖ − yₖ| + l2_weight·(ŷₖ − yₖ)².

    Raises:
        ConfigError: a weight is negative, or both are 0.

    >>> ElasticLearningLoss(0.1).stage_loss()
    Elastic(l1_weight=0.1, l2_weight=0.5)
    """

    def __init__(self, l1_weight: float = 0.5, l2_weight: float = 0.5) -> None:
        self.l1_weight, self.l2_weight = l1_weight, l2_weight
        self.stage_loss()

    def stage_loss(self) -> Loss:
        """Return the loss of the add_loss stage."""
        from ortpipe.stages.add_loss.losses.elastic import Elastic

        return Elastic(self.l1_weight, self.l2_weight)


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
        self.stage_loss()

    def stage_loss(self) -> Loss:
        """Return the loss of the add_loss stage."""
        from ortpipe.stages.add_loss.losses.log import Log

        return Log(self.eps)

    def scored(self, forward: Artifact, columns: int) -> Artifact:
        """Return the artifact as a classifier by its raw scores."""
        facts = forward.facts
        width = _width(forward.model, facts.prediction)
        if columns > 1:
            return replace(forward, facts=replace(facts, task="multilabel", logits=facts.prediction))
        if width not in (1, 2):
            raise LossError(
                "The negative log loss of one label reads one or two scores per row.",
                got=f"{facts.prediction!r} with {width} columns",
                fix="Give labels of as many columns, or choose an output with raw scores of two classes.",
            )
        model, score = (forward.model, facts.prediction) if width == 1 else _second(forward.model, facts.prediction)
        facts = replace(facts, task="binary", classes=(0, 1), prediction=score, logits=score, outputs=(score,))
        return replace(forward, model=model, facts=facts)


def _width(model: onnx.ModelProto, name: str) -> int:
    [output] = [o for o in model.graph.output if o.name == name]
    dims = output.type.tensor_type.shape.dim
    return int(dims[-1].dim_value) if len(dims) == 2 else 1


def _second(model: onnx.ModelProto, name: str) -> tuple[onnx.ModelProto, str]:
    import numpy as np
    import onnx_ir as ir

    from ortpipe.graph import query
    from ortpipe.graph.builder import Builder
    from ortpipe.graph.check import finish

    own = ir.from_proto(model)
    scores = query.value(own.graph, name)
    op = Builder(own.graph, "score")
    second = op.Gather(scores, op.const(np.array([1])), axis=1)
    second.type, second.shape = scores.type, ir.Shape(["N", 1])
    own.graph.outputs.append(second)
    return finish(own), str(second.name)
