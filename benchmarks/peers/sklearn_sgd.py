"""scikit-learn's SGDRegressor: a linear model by steps of one row each, so another path to the same minimum."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from plain import Epoch, Weights, main
from sklearn.linear_model import SGDRegressor


def build(problem: SimpleNamespace, threads: int) -> tuple[Epoch, Weights]:
    """Return the epoch and the weights; the rate moves as far in `batch` single steps as a step of the batch does."""
    model = SGDRegressor(alpha=0.0, learning_rate="constant", eta0=2 * problem.lr / problem.batch, shuffle=False)
    model.coef_ = problem.weights[0].ravel().copy()
    model.intercept_ = problem.weights[1].copy()

    def epoch(index: np.ndarray) -> float:
        rows = index.ravel()
        X, y = problem.X[rows], problem.y[rows]
        residual = X @ model.coef_ + model.intercept_ - y
        model.partial_fit(X, y)
        return float(residual @ residual / len(y))

    def weights() -> dict[str, np.ndarray]:
        return dict(zip(problem.names, (model.coef_.reshape(-1, 1), model.intercept_), strict=True))

    return epoch, weights


if __name__ == "__main__":
    main(build)
