"""Permutation importance: how much worse a metric is with one column of the test rows shuffled (Breiman, 2001)."""

from collections.abc import Callable, Collection, Mapping

import numpy as np

from ortpipe.data.feeds import feed_inputs
from ortpipe.data.rows import Rows, concatenate
from ortpipe.data.slices import owner_of
from ortpipe.metrics import Metric
from ortpipe.metrics.predictions import Compared, compared, truth
from ortpipe.stages.evaluate.answers import of_head
from ortpipe.stages.evaluate.stage import Work

MOST = 10_000  # the largest number of rows to shuffle
Places = list[tuple[str, int | None]]  # (input, its column; None: the whole input)


class _Fitted:
    """A stand-in for the estimator that scikit-learn requires."""

    def fit(self) -> None:
        """Do nothing: the model is in the scorer."""


def importance_of_columns(work: Work, defined: Collection[str]) -> dict[str, dict[str, list[float]]]:
    """Return the importance of each column of the test rows for the prediction's metrics that have a value."""
    facts, model, session = work.artifact.facts, work.artifact.signature, work.session("trained")
    sample = sample_of(work)
    true = truth(facts, sample)

    def predict(rows: Rows) -> Compared:
        [prediction] = session.run(feed_inputs(model, facts, rows), [facts.prediction])
        return compared(facts, true, prediction, sample.sample_weight)

    metrics = {name: metric for name, metric in of_head(work.names, "").items() if name in defined}
    return importance(metrics, sample, predict, work.config.importance, work.config.seed)


def sample_of(work: Work) -> Rows:
    """Return the test rows whose columns are measured."""
    return concatenate(list(work.rows.pieces(min(MOST, work.most))))


def importance(
    metrics: Mapping[str, Metric], rows: Rows, predict: Callable[[Rows], Compared], repeats: int, seed: int
) -> dict[str, dict[str, list[float]]]:
    """Return, for each metric and column, the mean and deviation of how much worse the metric is without it.

    Positive: the metric needs the column. Computed by `sklearn.inspection.permutation_importance` for the
    columns of the user's table: the features of one word column are shuffled together.
    """
    from sklearn.inspection import permutation_importance

    columns = places_of(rows)

    def score(_: object, order: np.ndarray, __: object) -> dict[str, float]:
        entries = predict(_reordered(rows, list(columns.values()), order))
        values = {name: metric(*entries) for name, metric in metrics.items()}
        return {name: value if metrics[name].greater_is_better else -value for name, value in values.items()}

    count = len(rows.label)
    order = np.tile(np.arange(count)[:, None], (1, len(columns)))  # each column gets its own order
    by_metric = permutation_importance(_Fitted(), order, None, scoring=score, n_repeats=repeats, random_state=seed)
    return {
        name: {
            column: [float(mean), float(deviation)]
            for column, mean, deviation in zip(columns, result.importances_mean, result.importances_std, strict=True)
        }
        for name, result in by_metric.items()
    }


def places_of(rows: Rows) -> dict[str, Places]:
    """Return the places of each column of the user's table; an input of more than two dimensions is one column."""
    places: dict[str, Places] = {}
    for name, array in rows.inputs.items():
        if array.ndim != 2:
            places[name] = [(name, None)]
            continue
        column_names = rows.columns.get(name) or [f"{name}[{i}]" for i in range(array.shape[1])]
        for i, column in enumerate(column_names):
            places.setdefault(owner_of(rows, column), []).append((name, i))
    return places


def _reordered(rows: Rows, columns: list[Places], order: np.ndarray) -> Rows:
    """Return the rows with each column reordered by its column of `order`."""
    inputs = dict(rows.inputs)
    for places, column_order in zip(columns, order.T, strict=True):
        if (column_order == np.arange(len(column_order))).all():
            continue
        for name, column in places:
            if column is None:
                inputs[name] = rows.inputs[name][column_order]
                continue
            if inputs[name] is rows.inputs[name]:
                inputs[name] = inputs[name].copy()
            inputs[name][:, column] = rows.inputs[name][column_order, column]
    return rows.replace(inputs=inputs)
