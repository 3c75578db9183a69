"""Row weights from scikit-learn's sample_weight and class_weight."""

from typing import Any

import numpy as np
from sklearn.utils.class_weight import compute_sample_weight

from ortpipe import Data
from ortpipe.data import RowSet
from ortpipe.errors import DataError


def row_weights(sample_weight: Any, class_weight: Any, y: np.ndarray) -> np.ndarray | None:
    """Return each row's weight, float64 [N]: sample_weight times the class's weight; None if both are None.

    Raises:
        DataError: weights are not numbers, negative, all zero, or not one per row.
    """
    if sample_weight is None and class_weight is None:
        return None
    weight = np.ones(len(y)) if sample_weight is None else np.array(sample_weight, np.float64)
    weight = np.full(len(y), weight) if weight.ndim == 0 else weight
    if weight.shape != (len(y),) or not np.isfinite(weight).all() or (weight < 0).any():
        wrong = f"an array of shape {weight.shape}"
        if weight.shape == (len(y),):
            wrong = "nan or infinity" if not np.isfinite(weight).all() else f"{weight.min()}"
        rule = f"sample_weight must have one finite number, not negative, for each of {len(y)} rows."
        raise DataError(rule, got=wrong, fix="Give an array [N]; weight 0 excludes a row.")
    if not weight.any():
        raise DataError("sample_weight must not be zero for all rows.", got="zeros", fix="Give some row a weight.")
    if class_weight is not None:
        if y.ndim > 1 and y.shape[1] > 1:
            rule, fix = "class_weight needs rows of one class each.", "Leave it out, or give sample_weight."
            raise DataError(rule, got=f"{y.shape[1]} labels in a row", fix=fix)
        y = y.reshape(-1)
        if class_weight == "balanced":  # each class gets the same total weight
            classes, place = np.unique(y, return_inverse=True)
            sums = np.bincount(place, weight)
            weight = weight * (weight.sum() / (len(classes) * np.where(sums > 0, sums, 1)))[place]
        else:
            weight = weight * compute_sample_weight(class_weight, y)
    return weight


def with_mean_one(data: Data) -> Data:
    """Return rows with weights scaled to mean 1, so that the mean over N rows is Σ w·l / Σ w."""

    def scaled(rows: RowSet | None) -> Any:
        weight = getattr(rows, "sample_weight", None)
        return rows if weight is None else rows.replace(sample_weight=weight / weight.mean())  # type: ignore[union-attr]

    return Data(scaled(data.train), scaled(data.validation))
