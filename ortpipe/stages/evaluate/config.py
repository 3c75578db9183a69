"""What a config says about evaluate."""

from dataclasses import dataclass
from typing import Annotated

from ortpipe.metrics import METRICS
from ortpipe.settings import Config, Count, one_of


@dataclass(frozen=True)
class EvaluateConfig(Config):
    """Which metrics are computed on the test rows.

    Attributes:
        metrics: names from the catalogue of metrics, some with a number, such as `mean_pinball_loss_0.9`, those of a
            head with its name in front, such as `digit_1/accuracy`; by default a few that fit the tasks.
        rows: at most so many test rows count, evenly spaced.
    """

    metrics: tuple[Annotated[str, one_of("metric", METRICS)], ...] | None = None
    rows: Count = 200_000
