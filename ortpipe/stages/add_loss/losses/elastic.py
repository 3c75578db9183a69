"""Elastic error: l = Σₖ l1_weight·|ŷₖ − yₖ| + l2_weight·(ŷₖ − yₖ)²."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortpipe.errors import ConfigError
from ortpipe.graph.builder import Builder
from ortpipe.settings import Config
from ortpipe.stages.add_loss.losses import Scores


@dataclass(frozen=True)
class Elastic(Config):
    """A weighted sum of absolute and squared error."""

    l1_weight: float = 0.5
    l2_weight: float = 0.5
    tasks: ClassVar[tuple[str, ...]] = ("regression",)

    def __post_init__(self) -> None:
        if not (self.l1_weight >= 0 and self.l2_weight >= 0 and 0 < self.l1_weight + self.l2_weight < float("inf")):
            raise ConfigError(
                "The weights of the elastic loss are finite and not negative, and one is positive.",
                got=f"l1_weight={self.l1_weight}, l2_weight={self.l2_weight}",
                fix="Set them to 0.5 and 0.5, for example.",
            )

    def __call__(self, op: Builder, label: ir.Value, scores: Scores) -> ir.Value:
        """Return l1_weight·|ŷ − y| + l2_weight·(ŷ − y)² [N, K]."""
        difference = op.Sub(scores.prediction, label)
        absolute = op.Mul(op.Abs(difference), op.like(self.l1_weight, scores.prediction))
        squared = op.Mul(op.Mul(difference, difference), op.like(self.l2_weight, scores.prediction))
        return op.Add(absolute, squared)
