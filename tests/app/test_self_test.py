"""The doctor's training: right on a machine that is right, and able to fail."""

from __future__ import annotations

import numpy as np
import pytest

from ortpipe.app import self_test as module
from ortpipe.app.self_test import EPOCHS, descent, self_test
from ortpipe.errors import TrainError
from ortpipe.runtime.config import RuntimeConfig


def test_training_is_held_against_numpy() -> None:
    assert "100 steps with native gradients" in self_test("native", RuntimeConfig())


def test_the_training_builds_gradients_are_held_against_numpy_too(training_build: None) -> None:
    assert "100 steps with ort gradients" in self_test("ort", RuntimeConfig())


def test_numpys_descent_ends_in_the_line() -> None:
    X = np.random.default_rng(1).normal(size=(64, 3))
    losses = descent(X, X @ np.array([1.0, -2.0, 3.0]) + 0.5)
    assert len(losses) == 4 * EPOCHS
    assert losses[-1] < 1e-6 < losses[0]


def test_another_rate_than_numpys_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def slower(X: np.ndarray, y: np.ndarray) -> np.ndarray:
        return descent(X, y) * np.linspace(1, 1.1, 4 * EPOCHS)

    monkeypatch.setattr(module, "descent", slower)
    with pytest.raises(TrainError, match="gradient descent in NumPy"):
        self_test("native", RuntimeConfig())
