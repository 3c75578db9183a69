"""Checks of penalty's settings by facts alone, before any stage runs."""

from ortpipe.artifact import Facts
from ortpipe.errors import PenaltyError
from ortpipe.graph.core import selection
from ortpipe.stages.penalty.config import PenaltyConfig


def check(facts: Facts, config: PenaltyConfig) -> None:
    """Reject a pattern that matches no parameter."""
    for pattern in config.terms:
        selection.select([pattern], facts.parameters, PenaltyError, "terms")
