"""The data sets that scikit-learn includes; nothing is downloaded."""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ortpipe.data.parts import SplitConfig
from ortpipe.data.rows import Rows
from ortpipe.errors import DataError, nearest
from ortpipe.settings import Config, one_of

LOADERS = {
    "breast_cancer": "load_breast_cancer",
    "diabetes": "load_diabetes",
    "digits": "load_digits",
    "iris": "load_iris",
    "linnerud": "load_linnerud",
    "wine": "load_wine",
}


@dataclass(frozen=True)
class Bundled(Config):
    """One of scikit-learn's bundled sets.

    Attributes:
        dataset: the name of the set.
        sample_weight: the feature column that is used as row weights instead; null: none.
        params: keyword arguments of its loader, such as `scaled: false` for diabetes.
    """

    dataset: Annotated[str, one_of("dataset of scikit-learn", LOADERS)]
    sample_weight: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, split: SplitConfig | None = None) -> Rows:
        """Load the rows, with scikit-learn's names of the features."""
        if self.dataset == "digits" and not self.params and self.sample_weight is None and (rows := _digits()):
            return rows
        bunch = call_sklearn(LOADERS[self.dataset], {**self.params, "return_X_y": False})
        features, names = np.asarray(bunch.data), [str(name) for name in bunch.feature_names]
        weights = None
        if self.sample_weight is not None:
            if self.sample_weight not in names:
                rule, fix = "{key} must be a column of the data.", nearest(self.sample_weight, names)
                raise DataError(rule, key="sample_weight", got=repr(self.sample_weight), fix=fix)
            column = names.index(self.sample_weight)
            weights = features[:, column]
            features, names = np.delete(features, column, axis=1), names[:column] + names[column + 1 :]
        label = np.asarray(bunch.target)
        if hasattr(bunch, "target_names") and label.ndim == 1 and label.dtype.kind in "iu" and self.dataset != "digits":
            label = np.asarray(bunch.target_names)[label]  # names as the user knows them: 'benign', not 1
        return Rows(inputs={"X": features}, label=label, sample_weight=weights, columns={"X": tuple(names)})


def call_sklearn(name: str, arguments: Mapping[str, Any], fix: str = "Correct {key} or leave it empty.") -> Any:
    """Return what a function of `sklearn.datasets` returns; reject wrong arguments, which are a source's `params`."""
    from sklearn import datasets

    try:
        return getattr(datasets, name)(**arguments)
    except (TypeError, ValueError) as error:
        rule = f"{{key}} must be keyword arguments of sklearn.datasets.{name}."
        raise DataError(rule, key="params", got=error, fix=fix) from error


def _digits() -> Rows | None:
    """Return the rows of `load_digits()` without importing scikit-learn, which takes longer than a short run.

    None if the installed scikit-learn has no such file.
    """
    package = find_spec("sklearn")
    folders = () if package is None else package.submodule_search_locations or ()
    file = next((file for folder in folders if (file := Path(folder, "datasets/data/digits.csv.gz")).is_file()), None)
    if file is None:
        return None
    table = _table(file).copy()
    names = tuple(f"pixel_{i}_{j}" for i in range(8) for j in range(8))
    return Rows(inputs={"X": table[:, :-1]}, label=table[:, -1].astype(int), columns={"X": names})


@cache
def _table(file: Path) -> np.ndarray:  # cached for the jobs of a sweep
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return np.loadtxt(lines, delimiter=",")
