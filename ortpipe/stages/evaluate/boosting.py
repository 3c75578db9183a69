"""A baseline on request: scikit-learn's HistGradientBoosting with its defaults, on the same rows as the model."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn import ensemble, preprocessing
from threadpoolctl import threadpool_limits

from ortpipe.data.pieces import concatenate
from ortpipe.data.rows import Rows, RowSet
from ortpipe.errors import EvaluateError
from ortpipe.facts import Facts
from ortpipe.metrics import CLASSES
from ortpipe.metrics.predictions import Compared, truth
from ortpipe.metrics.titles import BOOSTING


def check_boosting(facts: Facts) -> None:
    """Raise EvaluateError for a model with another prediction than one class or value per row."""
    several = facts.heads or facts.class_axis is not None or facts.task == "multilabel"
    if several or facts.measured_as != facts.task:
        rule, fix = "{key} needs a model that predicts one class or value per row.", "Set {key}=constant."
        raise EvaluateError(rule, key="baseline", got=BOOSTING, fix=fix)


def boosted(
    facts: Facts, train: RowSet, test_rows: RowSet, tested: Compared, most: int, seed: int
) -> tuple[Compared, str]:
    """Return the predictions of scikit-learn's estimator with its defaults, and a note about its rows and columns."""
    rows, test = (concatenate(list(of.pieces(most))) for of in (train, test_rows))
    true = truth(facts, rows.label)
    if true.ndim > 1 and true.shape[1] > 1:
        check_boosting(dataclasses.replace(facts, class_axis=1))
    encode, categories = _encoder(rows)
    kind = ensemble.HistGradientBoostingClassifier if facts.task in CLASSES else ensemble.HistGradientBoostingRegressor
    estimator = kind(categorical_features=categories or None, random_state=seed)
    with threadpool_limits(1):  # one thread, one order of sums: byte-identical on any number of cores
        estimator.fit(encode(rows), true.reshape(-1), sample_weight=rows.sample_weight)
        if facts.task in CLASSES:
            assert tested.probability is not None
            probability = np.zeros_like(tested.probability)
            probability[:, estimator.classes_] = estimator.predict_proba(encode(test))
            entries = tested._replace(label=probability.argmax(axis=1), probability=probability)
        else:
            entries = tested._replace(label=estimator.predict(encode(test)).reshape(-1, 1))
    words = f", {len(categories)} of them as categories" if categories else ""
    count, width = len(rows.label), encode(rows.head(1)).shape[1]
    return entries, f"{BOOSTING} of scikit-learn is fitted on {count:,} training rows and {width:,} columns{words}"


def _encoder(train: Rows) -> tuple[Callable[[Rows], np.ndarray], list[int]]:
    """Return a function from rows to the features [N, F] of an estimator, and the places of categories.

    Words of more values than the estimator takes as categories are numbered in order; unknown words are missing.
    """
    encoders: dict[str, Any] = {}
    categories, place = list[int](), 0
    for name, array in train.inputs.items():
        if _is_text(train, name):
            encoders[name] = preprocessing.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
            encoders[name].fit(array.astype(str).reshape(-1, 1))
            if len(encoders[name].categories_[0]) <= 255:
                categories.append(place)
        place += array.size // len(array)

    def encode(rows: Rows) -> np.ndarray:
        columns = []
        for name, array in rows.inputs.items():
            if name in encoders:
                columns.append(encoders[name].transform(array.astype(str).reshape(-1, 1)))
            elif array.dtype.kind in "OUS":
                columns.append(_days(array))
            else:
                columns.append(array.reshape(len(array), -1).astype(np.float64))
        return np.hstack(columns)

    return encode, categories


def _is_text(rows: Rows, name: str) -> bool:
    is_date = name in rows.kept and rows.kept[name].kind == "date"
    return rows.inputs[name].dtype.kind in "OUS" and not is_date


def _days(dates: np.ndarray) -> np.ndarray:
    """Return dates of ISO 8601 as days [N, 1], nan if missing."""
    stamps = pd.to_datetime(dates.reshape(-1), utc=True, errors="coerce", format="ISO8601")
    days: np.ndarray = ((stamps - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)).to_numpy().reshape(-1, 1)
    return days
