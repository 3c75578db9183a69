"""Rows as input of a scikit-learn estimator: an array, or a frame of named columns."""

import warnings
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortpipe.data.rows import Rows
from ortpipe.errors import ConvertError
from ortpipe.stages.convert.sources.estimators import class_path
from ortpipe.stages.convert.sources.sklearn_encoders import ENCODERS, frame
from ortpipe.stages.convert.sources.sklearn_walk import COLUMN_TRANSFORMER, COMPOSITIONS, is_idle

EMPTY: Mapping[str, str | None] = {}


@dataclass(frozen=True)
class InputForm:
    """The inputs of an estimator's graph.

    Attributes:
        table: names of a table's columns, each an input [N]; None: a single input X [N, K] holds all columns.
        names: of the columns of X, if the estimator reads columns by name.
        truth: columns of the table that hold truth values, as the words true and false.
    """

    table: tuple[str, ...] | None
    names: tuple[str, ...] = ()
    truth: frozenset[str] = frozenset()

    def as_estimator_input(
        self,
        inputs: Mapping[str, np.ndarray],
        empty: Mapping[str, str | None] = EMPTY,
        truth: Set[str] | None = None,
    ) -> Any:
        """Return rows as the estimator takes them.

        Empty text becomes nan, or the value in `empty`; the words true and false of the columns `truth`, by default all
        columns of truth values, become booleans, or 1 and 0 beside missing values.
        """
        truth = self.truth if truth is None else truth
        if self.table is None:
            [array] = inputs.values()
            array = array.reshape(len(array), -1)
            if not self.names:
                return array
            columns = dict(zip(self.names, array.T, strict=True))
        else:
            columns = {
                name: _truth(inputs[name]) if name in truth else _column(inputs[name], empty.get(name, np.nan))
                for name in self.table
                if name in inputs
            }
        return frame(columns)


def _truth(array: np.ndarray) -> np.ndarray:
    words = array.reshape(-1)
    missing, is_true = words == "", words == "true"
    return np.where(missing, np.nan, is_true) if missing.any() else is_true


def _column(array: np.ndarray, empty: Any) -> np.ndarray:
    array = array.reshape(-1)
    if array.dtype.kind not in "USO":
        return array
    words = array.astype(object)
    return np.where(words == "", empty, words)


def form_for(estimator: Any, rows: Rows | None) -> InputForm:
    """Return the form of input that fits an estimator, and the rows if there are any."""
    fitted_names = tuple(map(str, getattr(estimator, "feature_names_in_", ())))
    if rows is None:
        return InputForm(fitted_names) if fitted_names and _by_name(estimator) else InputForm(None)
    inputs = rows.inputs
    all_columns = all(array.ndim == 1 or array.shape[1:] == (1,) for array in inputs.values())
    has_text = any(array.dtype.kind in "USO" for array in inputs.values())
    if len(inputs) == 1 and not has_text and not rows.kept:
        names = next(iter(rows.columns.values()), ())
        expected_names = fitted_names or (names if _by_name(estimator) else ())
        return InputForm(
            None, expected_names if len(expected_names) == np.prod(next(iter(inputs.values())).shape[1:]) else ()
        )
    if not all_columns:
        rule = "scikit-learn estimators take one input, or the columns of a table."
        raise ConvertError(rule, got=sorted(inputs), fix="Give one array of features, or arrays of one dimension each.")
    truth = frozenset(name for name, column in rows.kept.items() if column.of == "truth")
    return InputForm(fitted_names or tuple(inputs), truth=truth)


def _by_name(estimator: Any) -> bool:
    """Return whether an estimator selects columns by name, or reads words: it then needs a table's raw columns."""
    path = class_path(estimator)
    if path == COLUMN_TRANSFORMER:
        return True
    if path in COMPOSITIONS:
        steps = estimator.steps if hasattr(estimator, "steps") else estimator.transformer_list
        return any(_by_name(step) for _, step in steps if not is_idle(step))
    inner = getattr(
        estimator, "best_estimator_", getattr(estimator, "estimator", getattr(estimator, "regressor", None))
    )
    return path in ENCODERS or (inner is not None and hasattr(inner, "get_params") and _by_name(inner))


def predict_quietly(predict: Callable[..., Any], rows: Any) -> np.ndarray:
    """Return scikit-learn's prediction without its warnings, which do not matter to the conversion."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(predict(rows))
