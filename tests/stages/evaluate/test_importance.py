"""Permutation importance is scikit-learn's, of the columns of the user's table."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LinearRegression

from ortpipe.data.rows import Data, Rows
from ortpipe.metrics import METRICS
from ortpipe.metrics.predictions import Compared
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.evaluate.figures import figures
from ortpipe.stages.evaluate.sensitivity import importance, places_of
from ortpipe.stages.evaluate.stage import evaluate

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
Y = X @ [3.0, 0.0, -1.0] + 0.1 * RNG.normal(size=200)


def test_it_is_scikit_learns_to_the_digits_of_float32() -> None:
    model = LinearRegression().fit(X, Y)
    expected = permutation_importance(model, X, Y, scoring="r2", n_repeats=4, random_state=7)
    artifact = convert(model)
    data = Data(Rows({"X": X}, Y), test=Rows({"X": X}, Y))
    done = evaluate(artifact, EvaluateConfig(importance=4, seed=7), data=data)
    found = done.facts.lineage[-1]["importance"]
    mean, deviation = np.array(list(found["r2"].values())).T
    np.testing.assert_allclose(mean, expected.importances_mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(deviation, expected.importances_std, rtol=1e-3, atol=1e-6)
    assert list(found["r2"]) == ["X[0]", "X[1]", "X[2]"]
    assert found["mean_squared_error"]["X[0]"][0] > 1  # an error that rises is a loss
    assert figures(done)["importance"].startswith(b"\x89PNG")


def test_the_columns_that_a_word_became_are_shuffled_together() -> None:
    hot = np.eye(3)[RNG.integers(0, 3, 50)]
    rows = Rows(
        {"X": np.c_[RNG.normal(size=50), hot], "age": RNG.normal(size=50)},
        np.zeros(50),
        columns={"X": ("bmi", "sex=a", "sex=b", "sex=c")},
        categories={"sex": ("a", "b", "c")},
    )
    assert places_of(rows) == {"bmi": [("X", 0)], "sex": [("X", 1), ("X", 2), ("X", 3)], "age": [("age", None)]}

    def predict(moved: Rows) -> Compared:
        assert (moved.inputs["X"][:, 1:].sum(axis=1) == 1).all()
        return Compared(hot @ [[1.0], [2.0], [3.0]], moved.inputs["X"][:, 1:] @ [[1.0], [2.0], [3.0]], None, None)

    class Table(LinearRegression):
        """The same prediction from the table itself, whose second column is the word's number."""

        def predict(self, table: np.ndarray) -> np.ndarray:
            return table[:, 1] + 1

    table = np.c_[rows.inputs["X"][:, 0], hot.argmax(axis=1), rows.inputs["age"]]
    expected = permutation_importance(Table(), table, hot @ [1.0, 2.0, 3.0], scoring="r2", n_repeats=3, random_state=0)
    [found] = importance({"r2": METRICS["r2"]}, rows, predict, 3, 0).values()
    assert found["bmi"] == found["age"] == [0.0, 0.0]
    assert found["sex"] == pytest.approx([expected.importances_mean[1], expected.importances_std[1]], rel=1e-12)
