"""Permutation importance is scikit-learn's, of the columns of the user's table."""

from __future__ import annotations

import numpy as np
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LinearRegression

from ortpipe.data.rows import Data, Rows
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.evaluate.figures import figures
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
