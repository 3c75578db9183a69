"""OrtRegressor."""

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import column_or_1d

from ortpipe import Facts
from ortpipe.errors import DataError
from ortpipe.facts import Task
from ortpipe.metrics.predictions import predicted
from ortpipe.sklearn.base import OrtEstimator


class OrtRegressor(RegressorMixin, OrtEstimator):  # type: ignore[misc]
    """A regressor for one target [N] or several [N, K], trained by ortpipe.

    Arguments and attributes are those of `OrtEstimator`.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> regressor = OrtRegressor(hidden=(16,), learning_rate=0.01).fit(X[:300], y[:300])
    >>> regressor.score(X[300:], y[300:]) > 0.4
    True
    >>> [output.name for output in regressor.onnx_.graph.output]
    ['prediction']
    """

    _task: Task = "regression"

    @property
    def _target_checks(self) -> dict[str, Any]:
        return {"y_numeric": True}

    def _read_labels(self, y: np.ndarray, classes: Any, *, goes_on: bool) -> np.ndarray:
        if y.dtype.kind in "OSU":
            rule, fix = "OrtRegressor needs numeric labels.", "Use OrtClassifier: strings are classes."
            raise DataError(rule, got=f"labels such as {str(y.flat[0])!r}", fix=fix)
        values = column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y
        self.n_outputs_ = 1 if values.ndim == 1 else values.shape[1]
        return values

    def _take_classes(self, facts: Facts) -> None:
        pass

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one pass over these rows, continuing the last call; the first one sets the scales of X and y."""
        return self._partial_fit(X, y, sample_weight, None)

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted values [N], or [N, K] for several targets."""
        facts, raw = self._predictor.facts, self._predict(X)
        values = predicted(facts, raw)[0].astype(raw.dtype)
        return values.reshape(-1) if self.n_outputs_ == 1 else values

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
