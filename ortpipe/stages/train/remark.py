"""Sentences about how training runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Remark:
    """A sentence about how training runs, for the screen and the log."""

    text: str
    values: Mapping[str, float] = field(default_factory=dict)  # the same as numbers, for the record
