"""The config of evaluate."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from annotated_types import Ge, Le

from ortpipe.metrics import METRICS
from ortpipe.settings import Config, Count, Seed, Text, one_of

VERSION = 11  # raised whenever the stage's results change
DECIDING = tuple(name for name, metric in METRICS.items() if metric.reads == "label" and "binary" in metric.tasks)


@dataclass(frozen=True)
class EvaluateConfig(Config):
    """The metrics to compute on the test rows; a sweep chooses by those of the trained model on the validation rows.

    Attributes:
        metrics: such as `f1`, `mean_pinball_loss_0.9` or, for a head, `digit_1/accuracy`; default: a few for the task.
        baseline: `constant`, the majority class (with prior probabilities) or the mean of the training rows;
            `HistGradientBoosting`, also scikit-learn's estimator with its defaults, on the same rows; none.
        calibration: how to calibrate probabilities on the validation rows: temperature, or isotonic for two classes.
        threshold: the metric by which the validation rows choose the least probability of the second of two classes.
        rows: the largest number of test rows to use, evenly spaced.
        by: columns; the trained model's metrics are also computed for each of their values.
        bootstrap: bootstrap samples of the test rows for the 95 % interval of each metric (Efron, 1979); 0: none.
        importance: how often to shuffle each column of at most 10,000 test rows, to measure its importance; 0: never.
        sensitivity: whether to compute, by the gradient, how far the trained model's score moves to first order as each
            column (of an image, each pixel) goes from its mean to a test row's value (at most 10,000 rows).
        folds: of a run: the number of folds of cross-validation before the run's own fit; 0: none.
        seed: the seed of bootstrap and importance.
        require: limits on validation rows, `METRIC` or `slice.COLUMN=VALUE.METRIC` to `>= NUMBER` or `<= NUMBER`.
    """

    metrics: tuple[Annotated[str, one_of("metric", METRICS)], ...] | None = None
    baseline: Literal["constant", "HistGradientBoosting"] | None = "constant"
    calibration: Literal["temperature", "isotonic"] | None = None
    threshold: Annotated[str, replace(one_of("metric", METRICS), names=DECIDING)] | None = None
    rows: Count = 200_000
    by: tuple[str, ...] = ()
    bootstrap: Annotated[int, Ge(0), Le(1_000_000)] = 0
    importance: Annotated[int, Ge(0), Le(10_000)] = 0
    sensitivity: bool = False
    folds: Annotated[int, Ge(0), Le(1000)] = 0
    seed: Seed = 0
    require: Mapping[str, Text] = field(default_factory=dict, metadata={"identity": False})
