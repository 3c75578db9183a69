"""What a config says about penalty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ortpipe.errors import ConfigError, nearest
from ortpipe.settings import Config
from ortpipe.stages.penalty.penalties import PENALTIES


@dataclass(frozen=True)
class PenaltyConfig(Config):
    """What is charged for which parameters.

    Attributes:
        terms: parameter name or glob → {penalty: strength}, such as `{"*.weight": {"l2": 0.01}}`.
            Terms that meet in one parameter add up.
    """

    terms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pattern, strengths in self.terms.items():
            for name, strength in strengths.items():
                if name not in PENALTIES:
                    raise ConfigError(
                        "A penalty term names penalties of the catalogue.",
                        got=f"penalty.terms.{pattern}.{name}",
                        fix=nearest(name, PENALTIES),
                    )
                if not 0 <= strength < float("inf"):
                    raise ConfigError(
                        "A penalty's strength is finite and not negative.",
                        got=f"penalty.terms.{pattern}.{name}={strength}",
                        fix="Use 0 for none.",
                    )
