"""The catalogue of metrics: scikit-learn's, with the tasks and kinds of prediction that each supports."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ortpipe import own
from ortpipe.doors import later
from ortpipe.errors import EvaluateError
from ortpipe.facts import Facts
from ortpipe.settings import Catalogue, Must

if TYPE_CHECKING:
    from ortpipe.metrics.classes import average_precision, readable
    from ortpipe.metrics.curves import calibration_error
    from ortpipe.metrics.elements import accuracy, error_rate
    from ortpipe.metrics.named import named_metric, own_metric
    from ortpipe.metrics.pairs import hit_rate, mean_reciprocal_rank
    from ortpipe.metrics.quantiles import coverage, pinball_loss
    from ortpipe.metrics.survival import concordance, integrated_brier_score
else:
    later(__name__)


@dataclass(frozen=True)
class Metric:
    """A function of sklearn.metrics, or a user's function of truth, prediction and weight."""

    function: str | Callable[..., Any]  # its name in sklearn.metrics, or the user's function
    tasks: tuple[str, ...]
    reads: Literal["label", "probability", "levels"]  # predicted values or labels, probabilities, or values and levels
    greater_is_better: bool
    params: Mapping[str, Any] = field(default_factory=dict)  # its keyword arguments
    shown: tuple[str, ...] = ()  # the tasks that compute it by default
    parameter: tuple[str, float, Must] | None = None  # the keyword of a suffix of its name, its default and bound

    def __call__(
        self, truth: np.ndarray, label: np.ndarray, probability: np.ndarray | None, weight: np.ndarray | None
    ) -> float:
        """Return the metric of predictions against the truth, weighted if rows have weights; nan if undefined."""
        read: Any = (label, probability) if self.reads == "levels" else label
        params = dict([self.parameter[:2]] if self.parameter else [], **self.params)
        if self.reads == "probability":
            assert probability is not None
            read, truth, more = readable(self.function, truth, probability)
            params |= more
        if not isinstance(self.function, str):
            with own.blamed(self.function, "metric", EvaluateError):
                return float(self.function(truth, read, weight, **params))
        from sklearn import metrics

        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of undefined values and absent classes
            try:
                return float(getattr(metrics, str(self.function))(truth, read, sample_weight=weight, **params))
            except ValueError as error:
                rule, fix = "A metric must be defined for the labels and the predictions.", "Choose another metric."
                raise EvaluateError(rule, got=f"{self.function}: {error}", fix=fix) from error


class Metrics(Catalogue[Metric]):
    """The catalogue, including metrics with a parameter in their name, and the user's functions.

    Prefix a name with a head to measure that head's prediction: `digit_1/accuracy`. A user's function has the attribute
    `greater_is_better`, and optionally `tasks` (default: all) and `reads` (default: "label").

    >>> METRICS["top_k_accuracy_5"].params, "mean_pinball_loss_2" in METRICS, "digit_1/accuracy" in METRICS
    ({'k': 5}, False, True)
    """

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or named_metric(self, str(name)) is not None

    def __getitem__(self, name: str) -> Metric:
        named = None if super().__contains__(name) else named_metric(self, name)
        return named or super().__getitem__(head_and_metric(name)[1])

    def of_own(self, part: Any) -> Metric:
        """Return the metric of a user's function."""
        return own_metric(part)


CLASSES, SEQUENCES = ("binary", "multiclass"), ("sequence",)  # the labels that all steps form together (CTC)
LABELS = (*CLASSES, "multilabel")
VALUES, PAIRS, QUANTILES, SURVIVAL = ("regression",), ("pairs",), ("quantiles",), ("risk", "survival")  # `Facts.link`
MACRO = {"average": "macro", "zero_division": 0}
ALPHA = "alpha", 0.5, Must("from 0 to 1", lambda alpha: 0 <= alpha <= 1)
POWER = "power", 1.5, Must("at most 0, or at least 1", lambda power: power <= 0 or 1 <= power < math.inf)
PLACES = "k", 2, Must("at least 1", lambda k: k >= 1)  # the only whole number
LEVEL = "level", math.nan, Must("between 0 and 1", lambda level: 0 < level < 1)
METRICS = Metrics(
    "metric",
    {
        "r2": Metric("r2_score", VALUES, "label", True, shown=VALUES),
        "mean_squared_error": Metric("mean_squared_error", VALUES, "label", False, shown=VALUES),
        "mean_absolute_error": Metric("mean_absolute_error", VALUES, "label", False, shown=VALUES),
        "root_mean_squared_error": Metric("root_mean_squared_error", VALUES, "label", False),
        "median_absolute_error": Metric("median_absolute_error", VALUES, "label", False),
        "mean_absolute_percentage_error": Metric("mean_absolute_percentage_error", VALUES, "label", False),
        "explained_variance": Metric("explained_variance_score", VALUES, "label", True),
        "mean_pinball_loss": Metric("mean_pinball_loss", VALUES, "label", False, parameter=ALPHA),
        "mean_poisson_deviance": Metric("mean_poisson_deviance", VALUES, "label", False),
        "mean_gamma_deviance": Metric("mean_gamma_deviance", VALUES, "label", False),
        "mean_tweedie_deviance": Metric("mean_tweedie_deviance", VALUES, "label", False, parameter=POWER),
        "d2_absolute_error": Metric("d2_absolute_error_score", VALUES, "label", True),
        "d2_pinball": Metric("d2_pinball_score", VALUES, "label", True, parameter=ALPHA),
        "d2_tweedie": Metric("d2_tweedie_score", VALUES, "label", True, parameter=POWER),
        "pinball_loss": Metric(pinball_loss, QUANTILES, "levels", False, shown=QUANTILES, parameter=LEVEL),
        "coverage": Metric(coverage, QUANTILES, "label", True, shown=QUANTILES),
        "concordance": Metric(concordance, SURVIVAL, "label", True, shown=SURVIVAL),
        "integrated_brier_score": Metric(integrated_brier_score, ("survival",), "levels", False, shown=("survival",)),
        "hit_rate": Metric(hit_rate, PAIRS, "label", True, shown=PAIRS, parameter=("k", 1, PLACES[2])),
        "mean_reciprocal_rank": Metric(mean_reciprocal_rank, PAIRS, "label", True, shown=PAIRS),
        "accuracy": Metric("accuracy_score", LABELS, "label", True, shown=LABELS),
        "f1": Metric("f1_score", ("binary",), "label", True, {"zero_division": 0}),
        "f1_macro": Metric("f1_score", LABELS, "label", True, MACRO, shown=LABELS),
        "precision_macro": Metric("precision_score", LABELS, "label", True, MACRO),
        "recall_macro": Metric("recall_score", LABELS, "label", True, MACRO),
        "balanced_accuracy": Metric("balanced_accuracy_score", CLASSES, "label", True, shown=CLASSES),
        "matthews_corrcoef": Metric("matthews_corrcoef", CLASSES, "label", True),
        "log_loss": Metric("log_loss", CLASSES, "probability", False, shown=CLASSES),
        "brier_score": Metric("brier_score_loss", CLASSES, "probability", False),
        "calibration_error": Metric(calibration_error, CLASSES, "probability", False),
        "roc_auc": Metric("roc_auc_score", LABELS, "probability", True, {"multi_class": "ovr"}, shown=("binary",)),
        "average_precision": Metric(average_precision, LABELS, "probability", True, shown=("binary",)),
        "top_k_accuracy": Metric("top_k_accuracy_score", ("multiclass",), "probability", True, parameter=PLACES),
        "character_error_rate": Metric(error_rate, SEQUENCES, "label", False, shown=SEQUENCES),
        "sequence_accuracy": Metric(accuracy, SEQUENCES, "label", True, shown=SEQUENCES),
    },
    open_to_own=True,
)
UNWEIGHTED = "_unweighted"  # the suffix of a metric that counts each row once, next to the weighted one


def head_and_metric(name: str) -> tuple[str, str]:
    """Return the head of a metric's name ("" for the prediction) and its plain name.

    >>> head_and_metric("digit_1/accuracy"), head_and_metric("accuracy")
    (('digit_1', 'accuracy'), ('', 'accuracy'))
    """
    head, _, plain = name.rpartition("/")
    return head, plain


def shown(facts: Facts) -> tuple[str, ...]:
    """Return the names of the metrics that are computed for a model by default.

    >>> shown(Facts("regression", ("X",), ("Y",), "Y", ("w",)))
    ('r2', 'mean_squared_error', 'mean_absolute_error')
    """
    return tuple(
        f"{head}/{name}{level}" if head else f"{name}{level}"
        for head, head_facts in facts.predictions.items()
        for name, metric in METRICS.items()
        if head_facts.measured_as in metric.shown
        for level in ("", *(f"_{at}" for at in head_facts.levels if metric.parameter is LEVEL))
    )
