"""Row weights as scikit-learn's users give them."""

from typing import Any

import numpy as np
from sklearn.utils.class_weight import compute_sample_weight

from ortpipe.data.rows import Data, RowSet
from ortpipe.errors import DataError


def row_weights(given: Any, class_weight: Any, y: np.ndarray) -> np.ndarray | None:
    """Return each row's weight, float64 [N]: the given ones times those of classes; None where there are neither.

    Raises:
        DataError: they are no numbers, negative, all zero, or not one for each row.
    """
    if given is None and class_weight is None:
        return None
    weight = np.ones(len(y)) if given is None else np.array(given, np.float64)
    weight = np.full(len(y), weight) if weight.ndim == 0 else weight
    if weight.shape != (len(y),) or not np.isfinite(weight).all() or (weight < 0).any():
        wrong = f"an array of shape {weight.shape}"
        if weight.shape == (len(y),):
            wrong = "nan or infinity" if not np.isfinite(weight).all() else f"{weight.min()}"
        rule = f"sample_weight has one finite number, not negative, for each of {len(y)} rows."
        raise DataError(rule, got=wrong, fix="Give an array [N]; 0 leaves a row out.")
    if not weight.any():
        raise DataError("sample_weight must not be zero for all rows.", got="zeros", fix="Give some row a weight.")
    if class_weight is not None:
        if y.ndim > 1 and y.shape[1] > 1:
            rule, fix = "class_weight is for rows of one class each.", "Leave it out, or give sample_weight."
            raise DataError(rule, got=f"{y.shape[1]} labels in a row", fix=fix)
        y = y.reshape(-1)
        if class_weight == "balanced":  # of the weighted rows
            classes, place = np.unique(y, return_inverse=True)
            sums = np.bincount(place, weight)
            weight = weight * (weight.sum() / (len(classes) * np.where(sums > 0, sums, 1)))[place]
        else:
            weight = weight * compute_sample_weight(class_weight, y)
    return weight


def with_mean_one(data: Data) -> Data:
    """Return rows whose weights are 1 on average: a mean over N rows is then Σ w·l / Σ w."""

    def scaled(rows: RowSet | None) -> Any:
        weight = getattr(rows, "sample_weight", None)
        return rows if weight is None else rows.replace(sample_weight=weight / weight.mean())  # type: ignore[union-attr]

    return Data(scaled(data.train), scaled(data.validation))
