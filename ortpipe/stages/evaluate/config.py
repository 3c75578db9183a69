"""What a config says about evaluate."""

from __future__ import annotations

from dataclasses import dataclass

from ortpipe.metrics import check_known


@dataclass(frozen=True)
class EvaluateConfig:
    """Which metrics are computed on the test rows.

    Attributes:
        metrics: names from the catalogue of metrics; by default all that fit the model's task.
    """

    metrics: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in self.metrics or ():
            check_known(name, "evaluate.metrics")
