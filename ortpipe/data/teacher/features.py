"""Rows as an estimator reads them: a frame of columns, or numbers."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np
import pandas as pd
from sklearn import compose, impute, pipeline, preprocessing

from ortpipe.data.rows import Rows
from ortpipe.errors import DataError

READS_CATEGORIES = ("HistGradientBoosting", "LGBM")  # estimators that read missing numbers and categories themselves
MOST_CATEGORIES = 254  # that HistGradientBoosting reads; rarer words count as missing
MOST_COLUMNS = 20  # of a column of words as numbers; rarer words share one


def frame_of(rows: Rows) -> pd.DataFrame:
    """Return rows as a frame: numbers as they are, words and dates as text, nan if missing, as pandas reads them.

    An underscore follows a column's name if an input or a column before it has the same.
    """
    frames, taken = [], {name for name, array in rows.inputs.items() if array.ndim == 1}
    for name, array in rows.inputs.items():
        if array.ndim == 1:
            text = array.dtype.kind in "OSU"
            cells = pd.Series(array, dtype=object).where(array != "", np.nan) if text else array
            frames.append(pd.DataFrame({name: cells}))
            continue
        flat, names = array.reshape(len(array), -1), list[str]()
        listed = rows.columns.get(name, ())
        for column in listed if len(listed) == flat.shape[1] else [f"{name}_{i}" for i in range(flat.shape[1])]:
            names.append(_free(column, taken))
            taken.add(names[-1])
        frames.append(pd.DataFrame(flat, columns=names))  # at once: a picture has many thousand columns
    return pd.concat(frames, axis=1)


def _free(name: str, taken: Container[str]) -> str:
    while name in taken:
        name += "_"
    return name


class Features:
    """Turns rows into the input of an estimator that is fitted on the training rows `train`."""

    def __init__(self, estimator: Any, train: Rows) -> None:
        kind = type(estimator).__name__
        self._dates = [name for name, column in train.kept.items() if column.kind == "date"]
        self._is_pipeline = isinstance(estimator, pipeline.Pipeline)
        frame = self._plain(train)
        words = [name for name, dtype in frame.dtypes.items() if dtype.kind not in "biuf"]
        self.categories: dict[str, Any] = {}  # column of words → those that the estimator reads as categories
        self._encoder = None
        if kind.startswith(READS_CATEGORIES):
            self.categories = {name: frame[name].value_counts().index[:MOST_CATEGORIES].sort_values() for name in words}
        elif not self._is_pipeline:
            self._encoder = encoder_of(list(frame), words).fit(frame)

    def __call__(self, rows: Rows) -> Any:
        """Return the features of rows."""
        frame = self._plain(rows)
        if self._encoder is not None:
            return self._encoder.transform(frame)
        for name, categories in self.categories.items():
            frame[name] = pd.Categorical(frame[name], categories=categories)
        if self.categories:
            return frame.set_axis(
                [f"c{place}" for place in range(frame.shape[1])], axis=1
            )  # LightGBM rejects some names
        return frame if self._is_pipeline else frame.to_numpy(np.float64)

    def _plain(self, rows: Rows) -> pd.DataFrame:
        return with_numbers_of_dates(frame_of(rows), self._dates)


def encoder_of(names: list[str], words: list[str]) -> Any:
    """Return an encoder of columns as numbers: standardized, the median if missing, and a column per frequent word."""
    numbers = [name for name in names if name not in words]
    scaled = pipeline.make_pipeline(impute.SimpleImputer(strategy="median"), preprocessing.StandardScaler())
    one_hot = preprocessing.OneHotEncoder(max_categories=MOST_COLUMNS, handle_unknown="ignore", sparse_output=False)
    return compose.ColumnTransformer([("numbers", scaled, numbers), ("words", one_hot, words)])


def with_numbers_of_dates(frame: pd.DataFrame, dates: list[str]) -> pd.DataFrame:
    """Return a frame with each date as days since 1970, month and weekday."""
    for name in dates:
        moments = pd.to_datetime(frame[name], format="ISO8601", utc=True, errors="coerce")
        frame[name] = (moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
        for part, numbers in (("month", moments.dt.month), ("weekday", moments.dt.day_of_week)):
            frame[_free(f"{name} {part}", frame)] = numbers
    return frame


def of_fitted(estimator: Any, rows: Rows) -> Any:
    """Return rows as the input of an estimator that was fitted elsewhere: its columns by name, if it knows names.

    An estimator with a true `reads_rows` gets the rows.
    """
    if getattr(estimator, "reads_rows", False):
        return rows
    frame = frame_of(rows)
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return frame.to_numpy(np.float64) if all(dtype.kind in "biuf" for dtype in frame.dtypes) else frame
    if missing := [str(name) for name in names if name not in frame]:
        rule, fix = "The teacher must read columns of the data.", "Fit it on the columns of this table."
        raise DataError(rule, key="path", got=f"no column {', '.join(map(repr, missing[:10]))}", fix=fix)
    return frame[list(names)]
