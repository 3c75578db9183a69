"""The plain case of a metric is scikit-learn's number, bit for bit; what is not plain is left to scikit-learn."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from ortpipe.metrics import METRICS, plain

SEEDS = range(12)
NAMES = [name for name, metric in METRICS.items() if metric.function in plain.FUNCTIONS]


def drawn(task: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return truth, labels or values, and probabilities: with ties, classes that no row has, equal values."""
    rng = np.random.default_rng(seed)
    rows = int(rng.choice([2, 3, 17, 450, 5000]))
    if task == "regression":
        truth, value = rng.normal(size=(2, rows, int(rng.integers(1, 4)))) * 10.0 ** rng.integers(-3, 6)
        truth[:, 0] = truth[0, 0] if seed % 4 == 1 else truth[:, 0]
        value = truth.copy() if seed % 4 == 2 else value
        return truth, np.asfortranarray(value) if seed % 3 == 0 else value, None
    if task == "multilabel":
        truth, label = rng.integers(0, 2, (2, rows, 4))
        truth[:, 1] = label[:, 1] = 0
        return truth, label, rng.uniform(size=(rows, 4))
    classes = 2 if task == "binary" else int(rng.integers(3, 12))
    probability = rng.dirichlet(np.full(classes, 0.3), rows)
    if seed % 3 == 0:  # ties, and certainty
        probability = np.round(probability, 1)
        probability[:, 0] += 1 - probability.sum(axis=1)
        probability = np.clip(probability, 0, 1) / np.clip(probability, 0, 1).sum(axis=1, keepdims=True)
    probability = np.asfortranarray(probability) if seed % 2 else probability
    truth = rng.integers(0, classes - (seed % 4 == 1), rows)
    return truth, probability.argmax(axis=1), probability


def asked(name: str, task: str, seed: int) -> tuple[str, np.ndarray, np.ndarray, dict[str, Any]]:
    """Return the function of scikit-learn, and what a metric calls it with."""
    truth, label, probability = drawn(task, seed)
    metric = METRICS[name]
    params, read = dict(metric.params), label
    if metric.reads == "probability":
        assert probability is not None
        read = probability[:, 1] if metric.function == "roc_auc_score" and task == "binary" else probability
        params |= {"labels": list(range(probability.shape[1]))} if metric.function == "log_loss" else {}
    return str(metric.function), truth, read, params


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "task"), [(name, task) for name in NAMES for task in METRICS[name].tasks])
def test_it_is_scikit_learns_to_the_bit(name: str, task: str, seed: int) -> None:
    function, truth, read, params = asked(name, task, seed)
    found = plain.of(function, truth, read, params)
    if function == "roc_auc_score" and (task != "binary" or len(np.unique(truth)) < 2):  # several curves, or none
        assert found is None
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            published = getattr(metrics, function)(truth, read, **params)
        assert np.float64(found).tobytes() == np.float64(published).tobytes()


def test_the_metrics_that_are_shown_by_default_are_plain_of_each_task() -> None:
    for name, metric in METRICS.items():
        for task in set(metric.shown) - {"sequence"}:
            function, truth, read, params = asked(name, task, 3)
            assert plain.of(function, truth, read, params) is not None, (name, task)


CLASSES = np.array([0, 1, 1])
EVEN = np.full((3, 2), 0.5)
VALUES = np.arange(3.0)
LABELS = [0, 1]


@pytest.mark.parametrize(
    ("name", "truth", "read", "params"),
    [
        ("median_absolute_error", VALUES, VALUES, {}),
        ("r2_score", VALUES[:1], VALUES[:1], {}),
        ("r2_score", VALUES, VALUES[:2], {}),
        ("r2_score", VALUES, VALUES.astype(np.float32), {}),
        ("mean_squared_error", VALUES, np.array([0, np.nan, 1]), {}),
        ("accuracy_score", CLASSES, VALUES, {}),
        ("accuracy_score", CLASSES, CLASSES - 1, {}),
        ("accuracy_score", CLASSES[:, None], CLASSES[:, None], {}),
        ("accuracy_score", np.full((3, 2), 2), np.full((3, 2), 2), {}),
        ("f1_score", CLASSES, CLASSES, {"average": "micro", "zero_division": 0}),
        ("log_loss", CLASSES, EVEN * 1.1, {"labels": LABELS}),
        ("log_loss", CLASSES, EVEN - [0.6, -0.6], {"labels": LABELS}),
        ("log_loss", CLASSES + 1, EVEN, {"labels": LABELS}),
        ("log_loss", CLASSES, EVEN, {"labels": [0, 1, 2]}),
        ("log_loss", CLASSES, EVEN.astype(np.float32), {"labels": LABELS}),
        ("roc_auc_score", CLASSES * 0, VALUES, {"multi_class": "ovr"}),
        ("roc_auc_score", CLASSES + 1, VALUES, {"multi_class": "ovr"}),
        ("roc_auc_score", CLASSES, EVEN, {"multi_class": "ovr"}),
    ],
)
def test_what_is_not_plain_is_left_to_scikit_learn(
    name: str, truth: np.ndarray, read: np.ndarray, params: dict[str, Any]
) -> None:
    assert plain.of(name, truth, read, params) is None


def test_scikit_learn_is_not_imported_for_it() -> None:
    code = """
import sys
import numpy as np
from ortpipe.metrics import METRICS
truth, values = np.array([0, 1, 1]), np.arange(3.0)
chance = np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]])
for name in ("accuracy", "f1_macro", "log_loss", "roc_auc"):
    METRICS[name](truth, chance.argmax(axis=1), chance, None)
for name in ("r2", "mean_squared_error", "mean_absolute_error"):
    METRICS[name](values[:, None], values[:, None], None, None)
print("sklearn" in sys.modules)
METRICS["accuracy"](truth, truth, None, np.ones(3))
print("sklearn" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
