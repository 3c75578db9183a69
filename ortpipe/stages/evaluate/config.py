"""What a config says about evaluate."""

from __future__ import annotations

from dataclasses import dataclass

from ortpipe.errors import ConfigError
from ortpipe.metrics import check_known
from ortpipe.settings import Config


@dataclass(frozen=True)
class EvaluateConfig(Config):
    """Which metrics are computed on the test rows.

    Attributes:
        metrics: names from the catalogue of metrics; by default all that fit the model's task.
        rows: of test rows that stream, at most so many count, evenly spaced; those in memory all do.
    """

    metrics: tuple[str, ...] | None = None
    rows: int = 200_000

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ConfigError("evaluate.rows is at least 1.", got=self.rows, fix="Set evaluate.rows=200000.")
        for name in self.metrics or ():
            check_known(name, "evaluate.metrics")
