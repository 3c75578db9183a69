"""Class weights: the factors by which classes count in the loss."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import numpy as np

from ortpipe.data.row_set import RowSet
from ortpipe.errors import DataError, nearest
from ortpipe.settings import Fix, NotNegative

TRUTHS = {False: ("0", "no", "false", "off"), True: ("1", "yes", "true", "on")}
ClassWeight = Annotated[
    Literal["balanced"] | Mapping[bool | int | str, NotNegative] | None,
    Fix("Set {key}=balanced, or a weight for some classes: {key}={no: 1, yes: 5}."),
]


def class_weights(setting: ClassWeight, train: RowSet) -> dict[int | str, float]:
    """Return the weight of each class of the training rows, {} without a setting.

    `balanced` is N / (K · rows of the class), as in scikit-learn; classes that a mapping omits have weight 1.

    Raises:
        DataError: the labels are no classes, or the mapping names others.
    """
    if setting is None:
        return {}
    counts: Counter[int | str] = Counter()
    for label, _ in train.read_labels():
        counts.update(plain(label).tolist())
    if setting == "balanced":
        return {name: counts.total() / (len(counts) * count) for name, count in sorted(counts.items())}
    classes = {str(name): name for name in sorted(counts)}
    named = {_name(key, classes): float(weight) for key, weight in setting.items()}
    if unknown := [name for name in named if name not in classes]:
        rule, fix = "{key} must name classes of the training rows.", nearest(unknown[0], classes)
        raise DataError(rule, key="class_weight", got=repr(unknown[0]), fix=fix)
    weights = {label: named.get(name, 1.0) for name, label in classes.items()}
    if not any(weights.values()):
        rule, fix = "{key} must not be zero for all classes.", "Give some class a weight."
        raise DataError(rule, key="class_weight", got=setting, fix=fix)
    return weights


def _name(key: bool | int | str, classes: Iterable[str]) -> str:
    """Return the class that a key names; YAML reads `no` and `yes` as truth values."""
    if not isinstance(key, bool):
        return str(key)
    return next((name for name in classes if name.lower() in TRUTHS[key]), str(key))


def plain(label: np.ndarray) -> np.ndarray:
    """Return the classes of rows [N] as integers or words; raise DataError for other labels."""
    rows = np.array(label.tolist()) if label.dtype == object else label
    rows = rows.reshape(-1) if rows.ndim == 2 and rows.shape[1] == 1 else rows
    if rows.ndim != 1 or (rows.dtype.kind == "f" and (rows % 1 != 0).any()):
        actual = f"labels of shape {label.shape}" if rows.ndim != 1 else f"the label {rows[rows % 1 != 0][0]}"
        rule, fix = "Class weights need rows of one class each.", "Set {key}=null."
        raise DataError(rule, key="class_weight", got=actual, fix=fix)
    return rows if rows.dtype.kind == "U" else rows.astype(np.int64)


def weights_of_rows(weights: Mapping[int | str, float], label: np.ndarray, row_weights: Any) -> np.ndarray | None:
    """Return the weights of rows, or None, times those of their classes."""
    if not weights:
        return row_weights
    classes, places = np.unique(plain(label), return_inverse=True)
    factors = np.array([weights.get(name, 1.0) for name in classes.tolist()])[places]
    return factors if row_weights is None else factors * row_weights
