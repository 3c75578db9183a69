"""scikit-learn's MLPRegressor and MLPClassifier, one pass of `partial_fit` per epoch over the rows in order."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from plain import Epoch, Weights, main
from sklearn.neural_network import MLPClassifier, MLPRegressor


def build(problem: SimpleNamespace, threads: int) -> tuple[Epoch, Weights]:
    """Return the epoch and the weights; the threads are those of the BLAS, set by the environment.

    scikit-learn's squared loss is half the mean square: twice the rate (sgd) or half the epsilon (adam) makes the
    same steps, and its loss is doubled.
    """
    regression = not problem.classes
    factor = 2 if regression else 1
    sgd = problem.optimizer == "sgd"
    model = (MLPRegressor if regression else MLPClassifier)(
        hidden_layer_sizes=problem.sizes[1:-1],
        solver=problem.optimizer,
        alpha=0.0,
        batch_size=problem.batch,
        learning_rate_init=problem.lr * (factor if sgd else 1),
        momentum=0.0,
        nesterovs_momentum=False,
        epsilon=1e-8 / factor,
        shuffle=False,
    )
    classes = {} if regression else {"classes": np.arange(problem.classes)}
    model.partial_fit(problem.X[: problem.batch], problem.y[: problem.batch], **classes)  # makes its arrays
    for own, given in zip(model.coefs_, problem.weights[::2], strict=True):
        own[:] = given
    for own, given in zip(model.intercepts_, problem.weights[1::2], strict=True):
        own[:] = given
    del model._optimizer  # with the state of that step
    model.t_, model.n_iter_ = 0, 0

    def epoch(index: np.ndarray) -> float:
        rows = index.ravel()
        model.partial_fit(problem.X[rows], problem.y[rows])
        return model.loss_ * factor

    def weights() -> dict[str, np.ndarray]:
        arrays = [a for pair in zip(model.coefs_, model.intercepts_, strict=True) for a in pair]
        return dict(zip(problem.names, arrays, strict=True))

    return epoch, weights


if __name__ == "__main__":
    main(build)
