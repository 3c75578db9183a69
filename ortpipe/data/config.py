"""What a config says about data."""

from __future__ import annotations

from dataclasses import dataclass, field

from ortpipe.data.sources import SOURCES, Source
from ortpipe.errors import ConfigError


@dataclass(frozen=True)
class SplitConfig:
    """How rows are divided; `test` and `validation` are fractions of all rows."""

    test: float = 0.25
    validation: float = 0.0
    stratify: bool = False  # keep the classes' proportions in every part
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.test < 1 and 0 <= self.validation < 1 and self.test + self.validation < 1):
            raise ConfigError(
                "split.test and split.validation are fractions that leave rows to train on.",
                got=f"test={self.test}, validation={self.validation}",
                fix="Let both lie in [0, 1) with a sum below 1.",
            )


@dataclass(frozen=True)
class DataConfig:
    """Where rows come from and how they are split."""

    source: Source = field(metadata={"catalogue": SOURCES})
    split: SplitConfig = SplitConfig()
