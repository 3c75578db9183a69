"""What a config says about penalty."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from ortpipe.settings import Config, NotNegative, one_of
from ortpipe.stages.penalty.penalties import PENALTIES


@dataclass(frozen=True)
class PenaltyConfig(Config):
    """What is charged for which parameters.

    Attributes:
        terms: parameter name or glob → {penalty: strength}, such as `{"*.weight": {"l2": 0.01}}`.
            Terms that meet in one parameter add up.
        auto: the penalty of the objective that scikit-learn fitted the estimator by, in the loss's own reduction.
    """

    terms: Mapping[str, Mapping[Annotated[str, one_of("penalty", PENALTIES)], NotNegative]] = field(
        default_factory=dict
    )
    auto: bool = False
