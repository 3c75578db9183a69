"""The catalogue of metrics: scikit-learn's, with the tasks and kinds of prediction that each supports."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ortpipe import own
from ortpipe.errors import ConfigError, EvaluateError, nearest
from ortpipe.facts import Facts
from ortpipe.metrics.sequences import accuracy, error_rate
from ortpipe.settings import Catalogue, Must


@dataclass(frozen=True)
class Parameter:
    """A metric's keyword that may be the suffix of its name: `mean_pinball_loss_0.9`."""

    name: str
    bound: Must
    kind: type[float] | type[int] = float


@dataclass(frozen=True)
class Metric:
    """A function of sklearn.metrics, or a user's function of truth, prediction and weight."""

    function: str | Callable[..., Any]  # its name in sklearn.metrics, or the user's function
    tasks: tuple[str, ...]
    reads: Literal["label", "probability"]  # predicted values or labels, or probabilities
    greater_is_better: bool
    params: Mapping[str, Any] = field(default_factory=dict)  # its keyword arguments
    shown: tuple[str, ...] = ()  # the tasks that compute it by default
    parameter: Parameter | None = None  # the keyword that its name contains

    def __call__(
        self, truth: np.ndarray, label: np.ndarray, probability: np.ndarray | None, weight: np.ndarray | None
    ) -> float:
        """Return the metric of predictions against the truth, weighted if rows have weights; nan if undefined."""
        read, params = label, dict(self.params)
        if self.reads == "probability":
            assert probability is not None
            scikit = isinstance(self.function, str) and self.function != "log_loss"
            of_one = scikit and truth.ndim == 1 and probability.shape[1] == 2
            read = probability[:, 1] if of_one else probability
            if read is probability and truth.ndim == 1 and self.function == "average_precision_score":
                occur = np.unique(truth)  # a class without rows has no curve, but scikit-learn scores it as 0
                truth, read = (truth[:, None] == occur).astype(np.int64), probability[:, occur]
            elif read is probability and truth.ndim == 1:
                params["labels"] = list(range(probability.shape[1]))
        if not isinstance(self.function, str):
            with own.blamed(self.function, "metric", EvaluateError):
                return float(self.function(truth, read, weight))
        from sklearn import exceptions, metrics

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", exceptions.UndefinedMetricWarning)
            warnings.filterwarnings("ignore", "y_pred contains classes not in y_true", UserWarning)
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
        name = part_of(str(name))[1]
        return super().__contains__(name) or self._named(name) is not None

    def __getitem__(self, name: str) -> Metric:
        name = part_of(name)[1]
        return self._named(name) or super().__getitem__(name)

    def of_own(self, part: Any) -> Metric:
        """Return the metric of a user's function."""
        up = getattr(part, "greater_is_better", None)
        reads, tasks = getattr(part, "reads", "label"), getattr(part, "tasks", (*VALUES, *LABELS))
        if not isinstance(up, bool) or reads not in ("label", "probability"):
            name = part.__name__
            raise ConfigError(
                "A custom metric must define greater_is_better, and `reads` as label or probability.",
                got=f"{own.path_of(part)} with greater_is_better={up!r}, reads={reads!r}",
                fix=f"Write {name}.greater_is_better = False (or True) below it, and {name}.reads unless it reads "
                "predicted values or labels.",
            )
        return Metric(part, tuple(tasks), "label" if reads == "label" else "probability", up)

    def _named(self, name: object) -> Metric | None:
        base, _, number = str(name).rpartition("_")
        metric = super().__getitem__(base) if super().__contains__(base) else None
        if metric is None or metric.parameter is None:
            return None
        try:
            value = metric.parameter.kind(number)
        except ValueError:
            return None
        fits = metric.parameter.bound.holds(value)
        return replace(metric, params={**metric.params, metric.parameter.name: value}) if fits else None


CLASSES = ("binary", "multiclass")
LABELS = (*CLASSES, "multilabel")
VALUES = ("regression",)
SEQUENCES = ("sequence",)  # labels that a row's steps form together (CTC)
MACRO = {"average": "macro", "zero_division": 0}
ALPHA = Parameter("alpha", Must("from 0 to 1", lambda alpha: 0 <= alpha <= 1))
POWER = Parameter("power", Must("at most 0, or at least 1", lambda power: power <= 0 or 1 <= power < math.inf))
PLACES = Parameter("k", Must("at least 1", lambda k: k >= 1), int)
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
        "mean_pinball_loss": Metric("mean_pinball_loss", VALUES, "label", False, {"alpha": 0.5}, parameter=ALPHA),
        "mean_poisson_deviance": Metric("mean_poisson_deviance", VALUES, "label", False),
        "mean_gamma_deviance": Metric("mean_gamma_deviance", VALUES, "label", False),
        "mean_tweedie_deviance": Metric(
            "mean_tweedie_deviance", VALUES, "label", False, {"power": 1.5}, parameter=POWER
        ),
        "d2_absolute_error": Metric("d2_absolute_error_score", VALUES, "label", True),
        "d2_pinball": Metric("d2_pinball_score", VALUES, "label", True, {"alpha": 0.5}, parameter=ALPHA),
        "d2_tweedie": Metric("d2_tweedie_score", VALUES, "label", True, {"power": 1.5}, parameter=POWER),
        "accuracy": Metric("accuracy_score", LABELS, "label", True, shown=LABELS),
        "f1_macro": Metric("f1_score", LABELS, "label", True, MACRO, shown=LABELS),
        "precision_macro": Metric("precision_score", LABELS, "label", True, MACRO),
        "recall_macro": Metric("recall_score", LABELS, "label", True, MACRO),
        "balanced_accuracy": Metric("balanced_accuracy_score", CLASSES, "label", True),
        "matthews_corrcoef": Metric("matthews_corrcoef", CLASSES, "label", True),
        "log_loss": Metric("log_loss", CLASSES, "probability", False, shown=CLASSES),
        "brier_score": Metric("brier_score_loss", CLASSES, "probability", False),
        "roc_auc": Metric("roc_auc_score", LABELS, "probability", True, {"multi_class": "ovr"}, shown=("binary",)),
        "average_precision": Metric("average_precision_score", LABELS, "probability", True),
        "top_k_accuracy": Metric(
            "top_k_accuracy_score", ("multiclass",), "probability", True, {"k": 2}, parameter=PLACES
        ),
        "character_error_rate": Metric(error_rate, SEQUENCES, "label", False, shown=SEQUENCES),
        "sequence_accuracy": Metric(accuracy, SEQUENCES, "label", True, shown=SEQUENCES),
    },
    open_to_own=True,
)
UNWEIGHTED = "_unweighted"  # the suffix of a metric that counts each row once, next to the weighted one
OBJECTIVE = Must(  # the value that a sweep optimizes
    "the name of a metric or 'loss'",
    lambda name: name == "loss" or str(name).removesuffix(UNWEIGHTED) in METRICS,
    ("loss", *METRICS, *(f"{name}{UNWEIGHTED}" for name in METRICS)),
)


def heading(column: str, columns: Collection[str]) -> str:
    """Return the title of a column whose name consists of rows and a value.

    >>> heading("test/r2", ["train/loss", "test/r2"]), heading("validation/a/r2", [])
    ('test r2', 'validation a/r2')
    """
    rows, _, name = column.partition("/")
    return f"{rows} {label(name, [other.partition('/')[2] for other in columns])}"


def label(name: str, measured: Collection[str]) -> str:
    """Return the name of a metric in a table, marked if both the weighted and the unweighted one were measured.

    >>> [label(name, ["r2", "r2_unweighted"]) for name in ("r2", "r2_unweighted")], label("r2", ["r2"])
    (['r2 (weighted)', 'r2 (unweighted)'], 'r2')
    """
    if name.endswith(UNWEIGHTED):
        return f"{name.removesuffix(UNWEIGHTED)} (unweighted)"
    return f"{name} (weighted)" if f"{name}{UNWEIGHTED}" in measured else name


def greater_is_better(name: str, *, recorded: bool = False) -> bool:
    """Return the direction of a metric; lower is better for the loss.

    For recorded results, a user's function is not imported: its direction is only known if a config has named it.

    >>> greater_is_better("accuracy"), greater_is_better("accuracy_unweighted"), greater_is_better("loss")
    (True, True, False)
    """
    plain = part_of(name.removesuffix(UNWEIGHTED))[1]
    if recorded and own.is_path(plain) and own.loaded(plain) is None:
        return False
    metric = METRICS.get(plain)
    return metric is not None and metric.greater_is_better


def part_of(name: str) -> tuple[str, str]:
    """Return the head of a metric's name ("" for the prediction) and its plain name.

    >>> part_of("digit_1/accuracy"), part_of("accuracy")
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
        f"{head}/{name}" if head else name
        for head, head_facts in facts.predictions.items()
        for name, metric in METRICS.items()
        if head_facts.measured_as in metric.shown
    )


def check_fits(name: str, facts: Facts, key: str | None = None) -> None:
    """Raise if a metric, named by the setting `key`, does not fit the task of the model or of its head."""
    head, plain = part_of(name)
    if head not in facts.predictions:
        rule, fix = "A metric with the prefix of a head must name one of the model's heads.", nearest(head, facts.heads)
        raise EvaluateError(
            rule, key=key, got=f"{head!r} in {name!r}", fix=f"{fix} They are {{@convert.source.heads}}."
        )
    if (task := facts.predictions[head].measured_as) not in METRICS[plain].tasks:
        fitting = [name for name, metric in METRICS.items() if task in metric.tasks]
        rule, fix = "A metric must fit the model's task.", f"Choose from {', '.join(fitting)}."
        fitting_heads = [
            of for of, head_facts in facts.predictions.items() if of and head_facts.measured_as in METRICS[plain].tasks
        ]
        fix += f" Prefix it with a head's name: {fitting_heads[0]}/{plain}." if fitting_heads and not head else ""
        raise EvaluateError(rule, key=key, got=f"{name} for a {task} {'head' if head else 'model'}", fix=fix)


def check_rows(name: str, *, validated: bool) -> None:
    """Raise if a metric is the objective but there are no validation rows: test rows must not influence choices."""
    if name != "loss" and not validated:
        raise ConfigError(
            "An objective metric is computed on validation rows; test rows must not influence choices.",
            got=f"{name}, without validation rows",
            fix="Set {@data.split.validation}=0.15, or objective=loss.",
        )


def check_value(name: str, values: Mapping[str, float]) -> None:
    """Raise if a finished job has no value for the objective, such as the ROC AUC of rows of one class."""
    if objective_in(name, [values]) not in values:
        raise EvaluateError(
            "The objective must have a value on the validation rows.",
            got=f"none for {name}",
            fix="Give more validation rows of every class ({@data.split.stratify}=true), or choose another objective.",
        )


def objective_in(name: str, jobs: Iterable[Mapping[str, float]]) -> str:
    """Return the key of an objective among the values of jobs: on validation rows if any job has them.

    >>> objective_in("loss", [{"train/loss": 1.0}, {"validation/loss": 2.0}]), objective_in("r2", [])
    ('validation/loss', 'validation/r2')
    """
    on_train = name == "loss" and not any("validation/loss" in values for values in jobs)
    return f"{'train' if on_train else 'validation'}/{name}"


def check_objective(name: str, facts: Facts, *, weighted: bool) -> None:
    """Raise if an objective does not fit the model's task, or is unweighted although no rows have weights."""
    if name == "loss":
        return
    check_fits(plain := name.removesuffix(UNWEIGHTED), facts)
    if name != plain and not weighted:
        raise EvaluateError(
            f"An objective that ends in {UNWEIGHTED} needs weighted rows.",
            got=f"{name}, with unweighted rows",
            fix=f"Set objective={plain}: each row counts once.",
        )
