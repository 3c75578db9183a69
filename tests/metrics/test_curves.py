"""Curves are those of scikit-learn 1.7 and later: roc_curve, precision_recall_curve, calibration_curve."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import precision_recall_curve, roc_curve

from ortpipe.metrics.curves import POINTS, curves, reliability
from ortpipe.metrics.predictions import Compared

RNG = np.random.default_rng(0)
TRUE = RNG.integers(0, 2, 300).astype(bool)
SCORE = RNG.uniform(size=300).round(2)  # many are equal
WEIGHT = RNG.uniform(0.1, 2, 300)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["equal", "weighted"])
def test_roc_and_precision_recall_are_scikit_learns(weight: np.ndarray | None) -> None:
    by_name = curves(Compared(TRUE.astype(int), SCORE > 0.5, np.stack([1 - SCORE, SCORE], axis=1), weight))
    fpr, tpr, _ = roc_curve(TRUE, SCORE, sample_weight=weight, drop_intermediate=False)
    np.testing.assert_allclose(by_name["roc/1"], np.stack([fpr, tpr], axis=1), atol=1e-12)
    precision, recall, _ = precision_recall_curve(TRUE, SCORE, sample_weight=weight)
    expected = np.stack([recall, precision], axis=1)[::-1]
    np.testing.assert_allclose(by_name["precision_recall/1"], expected, atol=1e-12)


def test_reliability_is_scikit_learns_and_weights_count() -> None:
    share, said = calibration_curve(TRUE, SCORE, n_bins=10)
    found = reliability(TRUE, SCORE, np.ones(300))
    np.testing.assert_allclose(found[:, :2], np.stack([said, share], axis=1), atol=1e-12)
    assert found[:, 2].sum() == 300
    twice = reliability(np.r_[TRUE, TRUE[:50]], np.r_[SCORE, SCORE[:50]], np.ones(350))
    np.testing.assert_allclose(reliability(TRUE, SCORE, np.r_[np.full(50, 2.0), np.ones(250)]), twice)


def test_of_two_classes_the_second_has_curves_and_long_ones_are_thinned_to_their_ends() -> None:
    p = RNG.uniform(size=2000)
    found = curves(Compared(RNG.integers(0, 2, 2000), p > 0.5, np.stack([1 - p, p], axis=1), None))
    assert set(found) == {"roc/1", "precision_recall/1", "reliability"}
    assert len(found["roc/1"]) == POINTS
    assert found["roc/1"][[0, -1]].tolist() == [[0, 0], [1, 1]]


def test_a_class_that_never_or_always_occurs_has_no_curve() -> None:
    probability = RNG.dirichlet(np.ones(3), 50)
    found = curves(Compared(RNG.integers(0, 2, 50), probability.argmax(1), probability, None))
    assert set(found) == {"roc/0", "roc/1", "precision_recall/0", "precision_recall/1", "reliability"}
    assert curves(Compared(np.zeros((5, 1)), np.zeros((5, 1)), None, None)) == {}


def test_each_of_many_labels_has_its_curves() -> None:
    truth = RNG.integers(0, 2, (50, 2))
    found = curves(Compared(truth, truth, probability := RNG.uniform(size=(50, 2)), None))
    assert set(found) == {"roc/0", "roc/1", "precision_recall/0", "precision_recall/1"}
    fpr, tpr, _ = roc_curve(truth[:, 1], probability[:, 1], drop_intermediate=False)
    np.testing.assert_allclose(found["roc/1"], np.stack([fpr, tpr], axis=1), atol=1e-12)


def test_reliability_is_of_the_second_of_two_classes_and_of_the_likeliest_of_several() -> None:
    p = RNG.uniform(size=400)
    truth = (RNG.uniform(size=400) < p).astype(int)
    found = curves(Compared(truth, p > 0.5, np.stack([1 - p, p], axis=1), None))["reliability"]
    share, said = calibration_curve(truth, p, n_bins=10)
    np.testing.assert_allclose(found[:, :2], np.stack([said, share], axis=1), atol=1e-12)
    probability = RNG.dirichlet(np.ones(3), 400)
    truth = np.array([RNG.choice(3, p=row) for row in probability])
    right = truth == probability.argmax(axis=1)
    found = curves(Compared(truth, probability.argmax(axis=1), probability, None))["reliability"]
    share, said = calibration_curve(right, probability.max(axis=1), n_bins=10)
    np.testing.assert_allclose(found[:, :2], np.stack([said, share], axis=1), atol=1e-12)
