"""What a config says about evaluate."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from ortpipe.metrics import METRICS
from ortpipe.settings import Config, Count, Seed, one_of


@dataclass(frozen=True)
class EvaluateConfig(Config):
    """Which metrics are computed on the test rows.

    Attributes:
        metrics: names from the catalogue of metrics, some with a number, such as `mean_pinball_loss_0.9`, those of a
            head with its name in front, such as `digit_1/accuracy`; by default a few that fit the tasks.
        rows: at most so many test rows count, evenly spaced.
        by: columns, by each of whose values the trained model's metrics are computed once more.
        bootstrap: how often the test rows are drawn anew for the 95 % interval of each of the trained model's metrics
            (percentiles; Efron, 1979); 0: no intervals. The draws follow from `seed`.
        importance: how often each column of the test rows (at most 10,000 of them) is shuffled to see what the trained
            model's metrics lose without it; 0: not at all.
        sensitivity: whether to compute how far the trained model's score moves, to first order, as each column (of an
            image, each pixel) goes from its mean to what a test row has, by the gradient (at most 10,000 rows).
        seed: of what bootstrap and importance draw.
    """

    metrics: tuple[Annotated[str, one_of("metric", METRICS)], ...] | None = None
    rows: Count = 200_000
    by: tuple[str, ...] = ()
    bootstrap: Annotated[int, Ge(0)] = 0
    importance: Annotated[int, Ge(0)] = 0
    sensitivity: bool = False
    seed: Seed = 0
