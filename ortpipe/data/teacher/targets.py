"""The predictions of a teacher, and training rows that hold them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn import metrics, model_selection
from threadpoolctl import threadpool_limits

from ortpipe.data.pieces import concatenate
from ortpipe.data.row_set import RowSet
from ortpipe.data.rows import SHARES, Data, Rows
from ortpipe.data.teacher.config import Arrays, Remember, TeacherConfig
from ortpipe.data.teacher.estimator import are_classes, classifies, fitted, is_fitted, predictions_of, teacher_of
from ortpipe.data.teacher.features import Features, of_fitted
from ortpipe.data.teacher.mixed import mixed, places_of
from ortpipe.errors import DataError

VERSION = 2  # raised whenever the predictions for equal rows change
NO_KEY = ("path", "trust", "alpha")  # settings that do not change the predictions; a file counts by its content


def taught(data: Data, config: TeacherConfig, remember: Remember | None = None) -> Data:
    """Return data whose training rows hold a teacher's predictions, followed by new rows; other parts do not change.

    A value becomes alpha · prediction + (1 - alpha) · label. For classes, the labels stay, and the rows get
    shares under `SHARES` among the labels of heads; new rows have the most likely class as their label.

    Args:
        data: the rows.
        config: the teacher.
        remember: returns the arrays of a computation for the same parts of a key, if it has them.

    Raises:
        DataError: the rows are streamed or not of one label each, or the teacher does not fit them.
    """
    train = _checked(data.train)
    estimator, identity = teacher_of(config, train.label)
    by_class = classifies(estimator, train.label)
    classes = np.unique(train.label) if by_class else None
    parts = _parts(config, estimator, identity, train)

    def compute() -> Arrays:
        with threadpool_limits(1):  # one order of sums: the same bytes on any number of cores
            return _computed(train, config, estimator, classes)

    arrays = compute() if remember is None else remember(parts, compute)
    rows = _joined(train, config.alpha, arrays, classes)
    return dataclasses.replace(data, train=rows, notes=(*data.notes, _note(estimator, config, train, arrays, classes)))


def _checked(train: RowSet) -> Rows:
    if not isinstance(train, Rows):
        rule, fix = "A teacher needs rows in memory.", "Set {@data.source.stream}=false."
        raise DataError(rule, got=f"{len(train):,} streamed rows", fix=fix)
    if train.label.ndim > 2 or (train.label.ndim == 2 and train.label.dtype.kind not in "iuf") or train.heads:
        rule = "A teacher needs rows with a class, or with values, as the only label."
        fix = f"{'Remove {@data.source.heads}, or set' if train.heads else 'Set'} {{@data.teacher}}=null."
        raise DataError(rule, got=f"labels of shape {train.label.shape}, heads {list(train.heads)}", fix=fix)
    return train


def _parts(config: TeacherConfig, estimator: Any, identity: Mapping[str, Any], train: Rows) -> dict[str, Any]:
    """Return everything that the predictions depend on, as JSON values."""
    settings = {name: value for name, value in vars(config).items() if name not in NO_KEY}
    names = sorted({"sklearn", "numpy", type(estimator).__module__.partition(".")[0]})
    versions = {name: str(getattr(sys.modules.get(name), "__version__", None)) for name in names}
    return {"version": VERSION, "rows": train.digest(), "teacher": {**settings, **identity}, "packages": versions}


def _computed(train: Rows, config: TeacherConfig, estimator: Any, classes: np.ndarray | None) -> Arrays:
    """Return predictions for training rows, new rows as places in the training rows, and predictions for them."""
    shape = train.label.shape[1:] if classes is None else (len(classes),)
    places = places_of(train, config)
    new = mixed(train, places) if len(places) else None
    if is_fitted(estimator):
        predictions = predictions_of(estimator, of_fitted(estimator, train), classes, shape)
        return {
            "predictions": predictions,
            "places": places,
            "new": predictions[:0]
            if new is None
            else predictions_of(estimator, of_fitted(estimator, new), classes, shape),
        }
    features = Features(estimator, train)
    x = features(train)
    predictions, sums = np.empty((len(train), *shape)), np.zeros((len(places), *shape))
    take = x.iloc if hasattr(x, "iloc") else x
    for seen, held_out in folds_of(train.label, config, classes):
        weight = None if train.sample_weight is None else train.sample_weight[seen]
        model = fitted(estimator, take[seen], train.label[seen], weight)
        predictions[held_out] = predictions_of(model, take[held_out], classes, shape)
        sums += predictions_of(model, features(new), classes, shape) if new is not None else 0
    return {"predictions": predictions, "places": places, "new": sums / config.folds}


def folds_of(label: np.ndarray, config: TeacherConfig, classes: np.ndarray | None) -> Any:
    """Yield the rows that a fit sees, and those that it predicts, by fold; stratified for classes."""
    kind = model_selection.KFold if classes is None else model_selection.StratifiedKFold
    try:
        yield from kind(config.folds, shuffle=True, random_state=config.seed % 2**32).split(label, label)
    except ValueError as error:
        raise DataError("{key} must fit the training rows.", key="folds", got=error, fix="Set fewer folds.") from error


def _joined(train: Rows, alpha: float, arrays: Arrays, classes: np.ndarray | None) -> Rows:
    """Return the training rows and the new rows with their targets."""
    predictions, new = arrays["predictions"], arrays["new"]
    rows = concatenate([train, mixed(train, arrays["places"])]) if len(new) else train
    truth = train.label if classes is None else (train.label.reshape(-1, 1) == classes).astype(np.float64)
    targets = np.concatenate([alpha * predictions + (1 - alpha) * truth, new])
    if classes is None:
        return rows.replace(label=targets)
    return rows.replace(label=np.concatenate([train.label, classes[new.argmax(axis=1)]]), heads={SHARES: targets})


def _note(estimator: Any, config: TeacherConfig, train: Rows, arrays: Arrays, classes: np.ndarray | None) -> str:
    """Return a note about the teacher, with the score of its predictions for the training rows."""
    predictions, label = arrays["predictions"], train.label
    if classes is None:
        score = f"r2 {metrics.r2_score(label, predictions):.4f}"
    else:
        score = f"accuracy {metrics.accuracy_score(label.reshape(-1), classes[predictions.argmax(axis=1)]):.4f}"
    name, more = type(estimator).__name__, len(arrays["new"])
    how = "already fitted, so it may have seen them" if is_fitted(estimator) else f"out of {config.folds} folds"
    meaning = "shares of classes" if classes is not None else "values"
    values = "; whole numbers become values" if classes is None and are_classes(label) else ""
    new = f"; {more:,} new rows" if more else ""
    return f"teacher {name}: {meaning}, {score} on the training rows ({how}){new}{values}"
