"""Rows as a scikit-learn estimator reads them: an array, or a frame of named columns."""

import warnings
from collections.abc import Callable, Mapping
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
    """What the inputs of an estimator's graph are.

    Attributes:
        table: the columns of a table, each an input [N]; None: all columns are the one input X [N, K].
        names: of the columns of X, where the estimator knows columns by name.
    """

    table: tuple[str, ...] | None
    names: tuple[str, ...] = ()

    def given(self, inputs: Mapping[str, np.ndarray], empty: Mapping[str, str | None] = EMPTY) -> Any:
        """Return rows as the estimator takes them; empty text is nan but in columns of `empty`."""
        if self.table is None:
            [array] = inputs.values()
            array = array.reshape(len(array), -1)
            if not self.names:
                return array
            columns = dict(zip(self.names, array.T, strict=True))
        else:
            columns = {name: _column(inputs[name], empty.get(name, np.nan)) for name in self.table if name in inputs}
        return frame(columns)


def _column(array: np.ndarray, empty: Any) -> np.ndarray:
    array = array.reshape(-1)
    if array.dtype.kind not in "USO":
        return array
    words = array.astype(object)
    return np.where(words == "", empty, words)


def form_for(estimator: Any, rows: Rows | None) -> InputForm:
    """Return the form that fits an estimator, and the rows where there are some."""
    known = tuple(map(str, getattr(estimator, "feature_names_in_", ())))
    if rows is None:
        return InputForm(known) if known and _by_name(estimator) else InputForm(None)
    inputs = rows.inputs
    flat = all(array.ndim == 1 or array.shape[1:] == (1,) for array in inputs.values())
    text = any(array.dtype.kind in "USO" for array in inputs.values())
    if len(inputs) == 1 and not text and not rows.kept:
        names = next(iter(rows.columns.values()), ())
        wanted = known or (names if _by_name(estimator) else ())
        return InputForm(None, wanted if len(wanted) == np.prod(next(iter(inputs.values())).shape[1:]) else ())
    if not flat:
        rule = "scikit-learn estimators take one input, or the columns of a table."
        raise ConvertError(rule, got=sorted(inputs), fix="Give one array of features, or arrays of one dimension each.")
    return InputForm(known or tuple(inputs))


def _by_name(estimator: Any) -> bool:
    """Return whether an estimator chooses columns by name, or reads words: it needs a table's own columns."""
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


def quiet(predict: Callable[..., Any], given: Any) -> np.ndarray:
    """Return what scikit-learn predicts; what it warns of is of no use to whoever converts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(predict(given))
