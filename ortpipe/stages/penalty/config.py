"""The config of penalty."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from ortpipe.settings import Config, NotNegative, one_of
from ortpipe.stages.penalty.penalties import PENALTIES

VERSION = 5  # raised whenever the stage's results change


@dataclass(frozen=True)
class PenaltyConfig(Config):
    """The penalties of parameters.

    Attributes:
        terms: parameter name or glob → {penalty: strength}, such as `{"*.weight": {"l2": 0.01}}`.
            Terms that match the same parameter add up.
        auto: add the penalty that scikit-learn fitted the estimator with, scaled to the loss's reduction.
    """

    terms: Mapping[str, Mapping[Annotated[str, one_of("penalty", PENALTIES)], NotNegative]] = field(
        default_factory=dict
    )
    auto: bool = False
