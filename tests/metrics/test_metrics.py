from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from sklearn import metrics

from ortpipe.errors import ConfigError, EvaluateError
from ortpipe.facts import Facts
from ortpipe.metrics import METRICS, PAIRS, QUANTILES, SEQUENCES, SURVIVAL, shown
from ortpipe.metrics.named import check_objective, check_value, greater_is_better
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.train.config import EarlyStopConfig


def facts(task):
    return Facts(task, ("X",), ("Y",), "Y", ("w",))


RNG = np.random.default_rng(6)
CLASSES = RNG.integers(0, 3, 40)
PROBABILITY = RNG.dirichlet(np.ones(3), 40)
BINARY = RNG.integers(0, 2, 40)
CHANCE = PROBABILITY[:, :2] / PROBABILITY[:, :2].sum(axis=1, keepdims=True)
VALUES, PREDICTED = RNG.normal(size=(40, 2)), RNG.normal(size=(40, 2))
LABELS, FOUND = RNG.integers(0, 2, (40, 3)), RNG.integers(0, 2, (40, 3))
# member: task, truth, predicted labels or values, probabilities, what scikit-learn says with weights w
MEMBERS = [
    ("r2", "regression", VALUES, PREDICTED, None, lambda w: metrics.r2_score(VALUES, PREDICTED, sample_weight=w)),
    (
        "mean_squared_error",
        "regression",
        VALUES,
        PREDICTED,
        None,
        lambda w: metrics.mean_squared_error(VALUES, PREDICTED, sample_weight=w),
    ),
    (
        "mean_absolute_error",
        "regression",
        VALUES,
        PREDICTED,
        None,
        lambda w: metrics.mean_absolute_error(VALUES, PREDICTED, sample_weight=w),
    ),
    (
        "accuracy",
        "multiclass",
        CLASSES,
        PROBABILITY.argmax(1),
        PROBABILITY,
        lambda w: metrics.accuracy_score(CLASSES, PROBABILITY.argmax(1), sample_weight=w),
    ),
    ("accuracy", "multilabel", LABELS, FOUND, None, lambda w: metrics.accuracy_score(LABELS, FOUND, sample_weight=w)),
    (
        "f1_macro",
        "binary",
        BINARY,
        CHANCE.argmax(1),
        CHANCE,
        lambda w: metrics.f1_score(BINARY, CHANCE.argmax(1), average="macro", sample_weight=w),
    ),
    (
        "f1_macro",
        "multilabel",
        LABELS,
        FOUND,
        None,
        lambda w: metrics.f1_score(LABELS, FOUND, average="macro", sample_weight=w),
    ),
    (
        "log_loss",
        "binary",
        BINARY,
        CHANCE.argmax(1),
        CHANCE,
        lambda w: metrics.log_loss(BINARY, CHANCE[:, 1], sample_weight=w),
    ),
    (
        "log_loss",
        "multiclass",
        CLASSES,
        PROBABILITY.argmax(1),
        PROBABILITY,
        lambda w: metrics.log_loss(CLASSES, PROBABILITY, sample_weight=w),
    ),
    (
        "roc_auc",
        "binary",
        BINARY,
        CHANCE.argmax(1),
        CHANCE,
        lambda w: metrics.roc_auc_score(BINARY, CHANCE[:, 1], sample_weight=w),
    ),
]
LINE, GUESS = RNG.gamma(2.0, size=(2, 40, 1))  # positive, as deviances want them
MANY = RNG.uniform(size=(40, 3))


def more(name, task, function, **params):
    """Return the row of a metric that is its function of scikit-learn with these keywords."""
    truth, label, probability = {
        "regression": (LINE, GUESS, None),
        "binary": (BINARY, CHANCE.argmax(1), CHANCE),
        "multiclass": (CLASSES, PROBABILITY.argmax(1), PROBABILITY),
        "multilabel": (LABELS, (MANY > 0.5).astype(int), MANY),
    }[task]
    read = label
    if METRICS[name].reads == "probability":
        read = probability[:, 1] if task == "binary" else probability
    return name, task, truth, label, probability, lambda w: function(truth, read, sample_weight=w, **params)


MACRO = {"average": "macro", "zero_division": 0}
MEMBERS += [
    more("root_mean_squared_error", "regression", metrics.root_mean_squared_error),
    more("median_absolute_error", "regression", metrics.median_absolute_error),
    more("mean_absolute_percentage_error", "regression", metrics.mean_absolute_percentage_error),
    more("f1", "binary", metrics.f1_score),
    more("brier_score", "binary", metrics.brier_score_loss),
    more("brier_score", "multiclass", metrics.brier_score_loss, labels=[0, 1, 2]),
    more("explained_variance", "regression", metrics.explained_variance_score),
    more("mean_pinball_loss", "regression", metrics.mean_pinball_loss, alpha=0.5),
    more("mean_pinball_loss_0.9", "regression", metrics.mean_pinball_loss, alpha=0.9),
    more("mean_poisson_deviance", "regression", metrics.mean_poisson_deviance),
    more("mean_gamma_deviance", "regression", metrics.mean_gamma_deviance),
    more("mean_tweedie_deviance", "regression", metrics.mean_tweedie_deviance, power=1.5),
    more("mean_tweedie_deviance_3", "regression", metrics.mean_tweedie_deviance, power=3),
    more("d2_absolute_error", "regression", metrics.d2_absolute_error_score),
    more("d2_pinball", "regression", metrics.d2_pinball_score, alpha=0.5),
    more("d2_pinball_0.1", "regression", metrics.d2_pinball_score, alpha=0.1),
    more("d2_tweedie", "regression", metrics.d2_tweedie_score, power=1.5),
    more("precision_macro", "multiclass", metrics.precision_score, **MACRO),
    more("recall_macro", "multiclass", metrics.recall_score, **MACRO),
    more("recall_macro", "multilabel", metrics.recall_score, **MACRO),
    more("balanced_accuracy", "multiclass", metrics.balanced_accuracy_score),
    more("matthews_corrcoef", "binary", metrics.matthews_corrcoef),
    more("roc_auc", "multiclass", metrics.roc_auc_score, multi_class="ovr"),
    more("roc_auc", "multilabel", metrics.roc_auc_score),
    more("average_precision", "binary", metrics.average_precision_score),
    more("average_precision", "multilabel", metrics.average_precision_score),
    more("average_precision", "multiclass", metrics.average_precision_score),
    more("top_k_accuracy", "multiclass", metrics.top_k_accuracy_score, k=2),
]


def expected_calibration_error(truth, probability, weight):
    """Return Σ |B|/n · |acc(B) − conf(B)| over ten bins (Guo, Pleiss, Sun and Weinberger, 2017, equation 3)."""
    weight = np.ones(len(truth)) if weight is None else weight
    confidence, hit, error = probability.max(axis=1), probability.argmax(axis=1) == truth, 0.0
    for m in range(1, 11):
        inside = ((m - 1) / 10 < confidence) & (confidence <= m / 10)
        if inside.any():
            means = (np.average(values[inside], weights=weight[inside]) for values in (hit, confidence))
            error += weight[inside].sum() / weight.sum() * abs(np.subtract(*means))
    return error


for task, truth, probability in (("binary", BINARY, CHANCE), ("multiclass", CLASSES, PROBABILITY)):
    MEMBERS.append(
        (
            "calibration_error",
            task,
            truth,
            probability.argmax(axis=1),
            probability,
            partial(expected_calibration_error, truth, probability),
        )
    )


def test_the_table_of_members_is_the_catalogue():
    assert {row[0] for row in MEMBERS if row[0] in list(METRICS)} == {
        name for name, metric in METRICS.items() if not {*SEQUENCES, *PAIRS, *QUANTILES, *SURVIVAL} & {*metric.tasks}
    }  # theirs: test_ctc.py, test_info_nce.py, test_quantiles.py and test_survival.py in tests/stages/add_loss/
    assert all(row[0] in METRICS for row in MEMBERS)


@pytest.mark.parametrize(
    "name", ["mean_pinball_loss_2", "mean_pinball_loss_", "top_k_accuracy_0", "top_k_accuracy_1.5", "r2_1", "_1"]
)
def test_a_name_with_a_number_that_its_metric_does_not_take_is_none(name):
    assert name not in METRICS
    with pytest.raises(ConfigError, match="the name of a metric"):
        EvaluateConfig((name,))


def test_a_name_with_a_number_is_watched_and_compared_by():
    assert greater_is_better("top_k_accuracy_5")
    assert not greater_is_better("mean_pinball_loss_0.9_unweighted")
    check_objective("d2_tweedie_1", facts("regression"), weighted=False)
    assert EarlyStopConfig(monitor="d2_pinball_0.9").sign == -1


def test_few_metrics_are_computed_unless_they_are_named():
    assert [len(shown(facts(task))) for task in ("regression", "binary", "multiclass", "multilabel")] == [3, 6, 4, 2]


def test_a_metric_that_is_not_defined_for_the_labels_says_why():
    with pytest.raises(EvaluateError, match=r"mean_gamma_deviance: (.|\n)*strictly positive"):
        METRICS["mean_gamma_deviance"](LINE - 5, GUESS, None, None)


def test_roc_auc_of_classes_that_the_rows_lack_has_no_value():
    truth = np.arange(10) % 2
    assert np.isnan(METRICS["roc_auc"](truth, truth, PROBABILITY[:10], None))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("name", "task", "truth", "label", "probability", "published"), MEMBERS)
def test_it_is_scikit_learns_number(name, task, truth, label, probability, published, weighted):
    weight = np.linspace(0.2, 2, 40) if weighted else None
    assert task in METRICS[name].tasks
    assert METRICS[name](truth, label, probability, weight) == pytest.approx(published(weight), rel=1e-12)


@pytest.mark.parametrize(("name", "task", "truth", "label", "probability", "published"), MEMBERS)
def test_a_perfect_prediction_is_best(name, task, truth, label, probability, published):
    certain = None
    if probability is not None:
        certain = truth if task == "multilabel" else np.eye(probability.shape[1])[truth]
    best, seen = METRICS[name](truth, truth, certain, None), METRICS[name](truth, label, probability, None)
    assert (best > seen) == METRICS[name].greater_is_better
    assert best == pytest.approx(1.0 if METRICS[name].greater_is_better else 0.0, abs=1e-12)


def test_log_loss_knows_the_classes_that_the_rows_lack():
    truth = np.zeros(5, int)
    assert METRICS["log_loss"](truth, truth, PROBABILITY[:5], None) == pytest.approx(-np.log(PROBABILITY[:5, 0]).mean())


def test_an_unknown_metric_names_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'accuracy'"):
        EvaluateConfig(("acuracy",))


def test_an_objective_of_unweighted_rows_needs_rows_with_weights():
    check_objective("accuracy_unweighted", facts("binary"), weighted=True)
    check_objective("accuracy", facts("binary"), weighted=False)
    check_objective("loss", facts("binary"), weighted=False)
    with pytest.raises(EvaluateError, match="objective=accuracy"):
        check_objective("accuracy_unweighted", facts("binary"), weighted=False)
    with pytest.raises(EvaluateError, match="fit the model's task"):
        check_objective("accuracy_unweighted", facts("regression"), weighted=True)


def test_an_objective_of_unweighted_rows_has_the_direction_of_its_metric():
    for name, metric in METRICS.items():
        assert greater_is_better(f"{name}_unweighted") == metric.greater_is_better


def test_an_objective_without_a_value_on_validation_rows_is_rejected():
    check_value("loss", {"train/loss": 1.0})
    check_value("roc_auc", {"validation/loss": 1.0, "validation/roc_auc": 0.5})
    with pytest.raises(EvaluateError, match="stratify"):
        check_value("roc_auc", {"validation/loss": 1.0, "validation/accuracy": 0.5})
