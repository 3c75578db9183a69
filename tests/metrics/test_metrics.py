from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from ortpipe.errors import ConfigError, EvaluateError
from ortpipe.metrics import METRICS, check_objective, greater_is_better
from ortpipe.stages.evaluate.config import EvaluateConfig

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


def test_the_table_of_members_is_the_catalogue():
    assert {row[0] for row in MEMBERS} == set(METRICS)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("name", "task", "truth", "label", "probability", "published"), MEMBERS)
def test_it_is_scikit_learns_number(name, task, truth, label, probability, published, weighted):
    weight = np.linspace(0.2, 2, 40) if weighted else None
    assert task in METRICS[name].tasks
    assert METRICS[name](truth, label, probability, weight) == pytest.approx(published(weight), rel=1e-12)


@pytest.mark.parametrize(("name", "task", "truth", "label", "probability", "published"), MEMBERS)
def test_a_perfect_prediction_is_best(name, task, truth, label, probability, published):
    certain = None if probability is None else np.eye(probability.shape[1])[truth]
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
    check_objective("accuracy_unweighted", "binary", weighted=True)
    check_objective("accuracy", "binary", weighted=False)
    check_objective("loss", "binary", weighted=False)
    with pytest.raises(EvaluateError, match="objective=accuracy"):
        check_objective("accuracy_unweighted", "binary", weighted=False)
    with pytest.raises(EvaluateError, match="fit the model's task"):
        check_objective("accuracy_unweighted", "regression", weighted=True)


def test_an_objective_of_unweighted_rows_has_the_direction_of_its_metric():
    for name, metric in METRICS.items():
        assert greater_is_better(f"{name}_unweighted") == metric.greater_is_better
