"""Permutation importance: what a metric loses where one column of the test rows is shuffled (Breiman, 2001)."""

from collections.abc import Callable, Mapping

import numpy as np

from ortpipe.data.rows import Rows
from ortpipe.data.slices import owner_of
from ortpipe.metrics import Metric
from ortpipe.metrics.predictions import Compared

MOST = 10_000  # rows that are shuffled
Places = list[tuple[str, int | None]]  # an input, and a column of it; None: all of it


class _Fitted:
    """What scikit-learn wants to be given beside the rows."""

    def fit(self) -> None:
        """Do nothing: the model is in the scorer."""


def importance(
    metrics: Mapping[str, Metric], rows: Rows, predict: Callable[[Rows], Compared], repeats: int, seed: int
) -> dict[str, dict[str, list[float]]]:
    """Return, for each metric and column, the mean and deviation of how much worse the metric is without it.

    Positive: the metric needs the column. By `sklearn.inspection.permutation_importance`, of columns as the user's
    table has them: the columns that a word became are shuffled together.
    """
    from sklearn.inspection import permutation_importance

    columns = places_of(rows)

    def score(_: object, order: np.ndarray, __: object) -> dict[str, float]:
        entries = predict(_taken(rows, list(columns.values()), order))
        values = {name: metric(*entries) for name, metric in metrics.items()}
        return {name: value if metrics[name].greater_is_better else -value for name, value in values.items()}

    count = len(rows.label)
    order = np.tile(np.arange(count)[:, None], (1, len(columns)))  # each column reads its values in an order of its own
    found = permutation_importance(_Fitted(), order, None, scoring=score, n_repeats=repeats, random_state=seed)
    return {
        name: {
            column: [float(mean), float(deviation)]
            for column, mean, deviation in zip(columns, of.importances_mean, of.importances_std, strict=True)
        }
        for name, of in found.items()
    }


def places_of(rows: Rows) -> dict[str, Places]:
    """Return where each column of the user's is; an input of more than two dimensions is one."""
    found: dict[str, Places] = {}
    for name, array in rows.inputs.items():
        if array.ndim != 2:
            found[name] = [(name, None)]
            continue
        called = rows.columns.get(name) or [f"{name}[{i}]" for i in range(array.shape[1])]
        for i, column in enumerate(called):
            found.setdefault(owner_of(rows, column), []).append((name, i))
    return found


def _taken(rows: Rows, columns: list[Places], order: np.ndarray) -> Rows:
    """Return the rows with each column in its order."""
    inputs = dict(rows.inputs)
    for places, own in zip(columns, order.T, strict=True):
        if (own == np.arange(len(own))).all():
            continue
        for name, column in places:
            if column is None:
                inputs[name] = rows.inputs[name][own]
                continue
            if inputs[name] is rows.inputs[name]:
                inputs[name] = inputs[name].copy()
            inputs[name][:, column] = rows.inputs[name][own, column]
    return rows.replace(inputs=inputs)
