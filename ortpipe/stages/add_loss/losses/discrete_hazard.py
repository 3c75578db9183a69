"""Discrete hazard: l = Σₖ sₖ·softplus(zₖ) + dₖ·softplus(−zₖ), with hazards σ(zₖ) of the intervals (cₖ₋₁, cₖ]."""

import itertools
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from ortpipe.errors import ConfigError, LossError
from ortpipe.facts import Facts
from ortpipe.graph.core.formulas import Builder, Value
from ortpipe.settings import Positive
from ortpipe.stages.add_loss.scores import LossConfig, Scores


@dataclass(frozen=True)
class DiscreteHazard(LossConfig):
    """The negative log-likelihood of survival in discrete time (Gensheimer and Narasimhan, 2019).

    Labels are a time t and an event e, 1 or 0 (censored). dₖ is 1 in the interval of an event, sₖ in each interval that
    the row survives: those before the event's, or those whose middle is not after the time of censoring. Events after
    the last cut point count as censored there. c₀ is 0.

    The raw prediction zₖ is the logit of the hazard, the probability of an event in the interval for a row without one
    before. The trained model returns the probability Π (1 − σ(zⱼ)), j ≤ k, of no event up to each cₖ.

    Attributes:
        cuts: the cut points c₁ < c₂ < …, or their number: the quantiles 1/n, 2/n … 1 of the times of events in the
            training rows, which a network by config stores in the model.
    """

    cuts: Annotated[int, Ge(2)] | tuple[Positive, ...] = 10
    link = "survival"
    label_columns = 2
    note = "the trained model returns the probabilities of no event up to the cut points"

    def __post_init__(self) -> None:
        cuts = self.levels
        if not isinstance(self.cuts, int) and (not cuts or any(a >= b for a, b in itertools.pairwise(cuts))):
            rule, fix = "{key} must be times in ascending order, or their number.", "Set {key}=[30,60,90], or {key}=10."
            raise ConfigError(rule, key="cuts", got=list(cuts), fix=fix)

    @property
    def depends_on_model(self) -> bool:
        """Whether the model has the cut points."""
        return isinstance(self.cuts, int)

    def of(self, facts: Facts) -> "DiscreteHazard":
        """Return the loss with the cut points that the model stores."""
        if not facts.levels:
            rule = "Only a network by config, or a start from one, has cut points: they are those of its training rows."
            fix = "Set {key}=[30,60,90], or choose convert=auto or mlp; from Python, set that network's intervals."
            raise LossError(rule, key="loss.cuts", got=f"{self.cuts}, for a model that stores no cut points", fix=fix)
        return replace(self, cuts=facts.levels)

    @property
    def levels(self) -> tuple[float, ...]:
        """The cut points."""
        return () if isinstance(self.cuts, int) else self.cuts

    @property
    def network(self) -> dict[str, Any]:
        """The settings that a network by config needs."""
        return {"intervals": self.cuts}

    def __call__(self, op: Builder, label: Value, scores: Scores) -> Value:
        """Return the terms [N, E…, K]."""
        z, dtype = scores.prediction, scores.dtype.numpy()
        time, event = op.Split(label, axis=-1, num_outputs=2, outputs=2)
        cuts = np.array(self.levels, dtype)
        before = np.concatenate([np.full(1, -1, dtype), cuts[:-1]])  # an event at 0 is in the first interval
        middles = (np.concatenate([np.zeros(1, dtype), cuts[:-1]]) + cuts) / 2
        reached = op.Greater(time, op.const(before))
        passed = op.Greater(time, op.const(cuts))
        died = op.And(op.And(reached, op.Not(passed)), op.Greater(event, 0))
        censored = op.And(op.GreaterOrEqual(time, op.const(middles)), op.Equal(event, op.like(0, event)))
        survived = op.cast(op.Or(passed, censored), z)
        # softplus(z) − dₖ·z is softplus(−z) where dₖ is 1, which excludes sₖ
        d = op.cast(died, z)
        return op.Sub(op.Mul(op.Add(survived, d), op.Softplus(z)), op.Mul(d, z))

    def predicts(self, op: Builder, raw: Value) -> Value:
        """Return exp(−Σ softplus(zⱼ)), j ≤ k, the probabilities of survival [N, K]."""
        return op.Exp(op.Neg(op.CumSum(op.Softplus(raw), op.const(np.int64(-1)))))
