"""Checks of derive's settings by facts alone, before any stage runs."""

from ortpipe.artifact import Facts
from ortpipe.data.rows import Data
from ortpipe.errors import DeriveError
from ortpipe.graph.core import selection
from ortpipe.stages.derive.config import DeriveConfig


def check(facts: Facts, config: DeriveConfig, *, data: Data | None = None) -> None:
    """Reject a pattern that matches no initializer, or no input."""
    selection.select(config.inputs, facts.inputs, DeriveError, "inputs")
    if config.output is None:  # another output may depend on others
        targets = None if config.adapters is None else config.adapters.targets
        patterns_by_key = {"parameters": config.parameters, "frozen": config.frozen, "adapters.targets": targets}
        for key, patterns in patterns_by_key.items():
            selection.select(patterns or (), (*facts.parameters, *facts.constants), DeriveError, key)
