"""Constant rate: ηₜ = η."""

from dataclasses import dataclass

from ortpipe.stages.train.schedules import Schedule


@dataclass(frozen=True)
class Constant(Schedule):
    """The base rate at every step."""
