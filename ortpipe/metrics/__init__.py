"""The catalogue of metrics: scikit-learn's own, by the task they fit and what they read."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ortpipe.errors import EvaluateError
from ortpipe.settings import Catalogue

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Metric:
    """A function of sklearn.metrics."""

    function: str  # its name there
    tasks: tuple[str, ...]
    reads: Literal["label", "probability"]  # predicted values or labels, or probabilities
    greater_is_better: bool
    params: Mapping[str, Any] = field(default_factory=dict)  # its keywords

    def __call__(
        self, truth: np.ndarray, label: np.ndarray, probability: np.ndarray | None, weight: np.ndarray | None
    ) -> float:
        """Return the metric of predictions against the truth, rows weighted if they have weights; nan without value."""
        from sklearn import metrics
        from sklearn.exceptions import UndefinedMetricWarning

        read, params = label, dict(self.params)
        if self.reads == "probability":
            assert probability is not None
            read = probability[:, 1] if self.function == "roc_auc_score" else probability
            if read is probability and truth.ndim == 1:
                params["labels"] = list(range(probability.shape[1]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UndefinedMetricWarning)
            return float(getattr(metrics, self.function)(truth, read, sample_weight=weight, **params))


CLASSES = ("binary", "multiclass")
METRICS: Catalogue[Metric] = Catalogue(
    "metric",
    {
        "r2": Metric("r2_score", ("regression",), "label", True),
        "mean_squared_error": Metric("mean_squared_error", ("regression",), "label", False),
        "mean_absolute_error": Metric("mean_absolute_error", ("regression",), "label", False),
        "accuracy": Metric("accuracy_score", (*CLASSES, "multilabel"), "label", True),
        "f1_macro": Metric(
            "f1_score", (*CLASSES, "multilabel"), "label", True, {"average": "macro", "zero_division": 0}
        ),
        "log_loss": Metric("log_loss", CLASSES, "probability", False),
        "roc_auc": Metric("roc_auc_score", ("binary",), "probability", True),
    },
)
UNWEIGHTED = "_unweighted"  # ends the name of a metric that counts each row once, beside the one that weighs them
OBJECTIVES = ("loss", *(f"{name}{UNWEIGHTED}" for name in METRICS))  # what a sweep compares by, besides metrics


def label(name: str, measured: Collection[str]) -> str:
    """Return what a table calls a metric: where both kinds were measured, each says which it is.

    >>> [label(name, ["r2", "r2_unweighted"]) for name in ("r2", "r2_unweighted")], label("r2", ["r2"])
    (['r2 (weighted)', 'r2 (unweighted)'], 'r2')
    """
    if name.endswith(UNWEIGHTED):
        return f"{name.removesuffix(UNWEIGHTED)} (unweighted)"
    return f"{name} (weighted)" if f"{name}{UNWEIGHTED}" in measured else name


def greater_is_better(name: str) -> bool:
    """Return the direction of a metric, or of the loss, which falls.

    >>> greater_is_better("accuracy"), greater_is_better("accuracy_unweighted"), greater_is_better("loss")
    (True, True, False)
    """
    found = METRICS.get(name.removesuffix(UNWEIGHTED))
    return found is not None and found.greater_is_better


def fitting(task: str) -> tuple[str, ...]:
    """Return the names of the metrics that fit a task.

    >>> fitting("regression")
    ('r2', 'mean_squared_error', 'mean_absolute_error')
    """
    return tuple(name for name, metric in METRICS.items() if task in metric.tasks)


def check_fits(name: str, task: str, key: str | None = None) -> None:
    """Refuse a metric, named by a setting `key`, that does not fit the model's task."""
    if name not in fitting(task):
        rule, fix = "A metric must fit the model's task.", f"Choose from {', '.join(fitting(task))}."
        raise EvaluateError(rule, key=key, got=f"{name} for a {task} model", fix=fix)


def check_objective(name: str, task: str, *, weighted: bool) -> None:
    """Refuse an objective that does not fit the model's task, or is of unweighted rows where none have weights."""
    if name == "loss":
        return
    check_fits(plain := name.removesuffix(UNWEIGHTED), task)
    if name != plain and not weighted:
        raise EvaluateError(
            f"An objective that ends in {UNWEIGHTED} needs rows with weights.",
            got=f"{name}, and rows without weights",
            fix=f"Set objective={plain}: each row counts once.",
        )
