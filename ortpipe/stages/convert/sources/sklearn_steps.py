"""A Pipeline as a config writes it: a list of steps, in scikit-learn's own words."""

import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortpipe.errors import ConvertError, nearest
from ortpipe.stages.convert.sources.estimators import ESTIMATORS
from ortpipe.stages.convert.sources.sklearn_encoders import ENCODERS
from ortpipe.stages.convert.sources.sklearn_transformers import FUNCTIONS, TRANSFORMERS
from ortpipe.stages.convert.sources.sklearn_walk import COMPOSITIONS

SELECTION = (
    *("SelectKBest", "SelectPercentile", "SelectFpr", "SelectFdr", "SelectFwe", "GenericUnivariateSelect"),
    *("VarianceThreshold", "SelectFromModel", "RFE", "RFECV", "SequentialFeatureSelector"),
)
PATHS = {
    path.rpartition(".")[2]: path
    for path in (
        *(*COMPOSITIONS, *ENCODERS, *TRANSFORMERS, *ESTIMATORS),
        *(f"sklearn.feature_selection.{name}" for name in SELECTION),
        *("sklearn.decomposition.KernelPCA", "sklearn.compose.TransformedTargetRegressor"),
        *(f"sklearn.feature_extraction.text.{name}Vectorizer" for name in ("Count", "Tfidf")),
    )
}
SCORES = ("f_classif", "f_regression", "chi2", "r_regression", "mutual_info_classif", "mutual_info_regression")
NAMED = {"transformers", "transformer_list", "steps", "estimators"}  # parameters that are parts with names


def pipeline_of(steps: Sequence[Any]) -> Any:
    """Return a Pipeline of these steps, or the only one by itself.

    A step is a class, or a class and its parameters: `StandardScaler`, `{PCA: {n_components: 3}}`; of a class that has
    a form in ortpipe the name is enough, of others the path is needed, such as `sklearn.decomposition.KernelPCA`.

    >>> pipeline_of(["StandardScaler", {"Ridge": {"alpha": 0.5}}]).steps[-1]
    ('ridge', Ridge(alpha=0.5))
    """
    return _step(steps, ("steps",))


def _step(said: Any, at: tuple[str | int, ...]) -> Any:
    """Return what a step is: idle words and None as they are, a list as a Pipeline."""
    if said is None or (isinstance(said, str) and said in ("passthrough", "drop")):
        return said
    if isinstance(said, Sequence) and not isinstance(said, str) and said:
        made = [_step(one, (*at, i)) for i, one in enumerate(said)]
        return made[0] if len(made) == 1 else _of_sklearn("pipeline.make_pipeline")(*made)
    name, params = (said, None) if isinstance(said, str) else next(iter(said.items()), (None, None))
    if not isinstance(name, str) or (isinstance(said, Mapping) and len(said) != 1):
        rule = "{key} must be a class of scikit-learn's, or a class and its parameters."
        raise ConvertError(rule, key=_key(at), got=said, fix="Write Ridge, or {Ridge: {alpha: 0.5}}.")
    chosen = _class(name, at)
    keywords = {key: _value(key, value, (*at, key)) for key, value in (params or {}).items()}
    try:
        return chosen(**keywords)
    except TypeError as error:
        rule = f"{{key}} must be parameters of {name}."
        raise ConvertError(rule, key=_key(at), got=error, fix="Correct {key}.") from error


def _class(name: str, at: tuple[str | int, ...]) -> Any:
    path = PATHS.get(name, name)
    try:
        found = pkgutil.resolve_name(path) if path.startswith("sklearn.") else None
    except (ImportError, AttributeError, ValueError):
        found = None
    if not (isinstance(found, type) and issubclass(found, _of_sklearn("base.BaseEstimator"))):
        rule = "{key} must be a class of scikit-learn's."
        fix = f"{nearest(name, PATHS)} Others by their path; your own in a function that returns the Pipeline."
        raise ConvertError(rule, key=_key(at), got=repr(name), fix=fix)
    return found


def _value(key: str, value: Any, at: tuple[str | int, ...]) -> Any:
    """Return a parameter's value: named parts as tuples, an estimator by its class, others as they are."""
    if key in NAMED and isinstance(value, Mapping):
        return [_part(key, name, part, (*at, name)) for name, part in value.items()]
    if key == "func" and isinstance(value, str):
        return _function(value, at)
    if key == "score_func" and value in SCORES:
        return _of_sklearn(f"feature_selection.{value}")
    known = value in PATHS if isinstance(value, str) else isinstance(value, Mapping) and _names_a_class(value)
    if known or (key in ("remainder", "transformer", "regressor", "estimator") and isinstance(value, Sequence)):
        return _step(value, at)
    return list(value) if isinstance(value, tuple) and key in ("categories", "knots") else value


def _names_a_class(value: Mapping[str, Any]) -> bool:
    [*names] = value
    return len(names) == 1 and (names[0] in PATHS or str(names[0]).startswith("sklearn."))


def _part(key: str, name: str, said: Any, at: tuple[str | int, ...]) -> tuple[Any, ...]:
    if key != "transformers":
        return name, _step(said, at)
    if not isinstance(said, Mapping) or set(said) != {"columns", "steps"}:
        rule = "{key} must have columns and steps, as a part of a ColumnTransformer."
        fix = "Write {columns: [age, fare], steps: [SimpleImputer, StandardScaler]}."
        raise ConvertError(rule, key=_key(at), got=said, fix=fix)
    columns = said["columns"]
    if isinstance(columns, Mapping):
        columns = _of_sklearn("compose.make_column_selector")(**columns)
    elif isinstance(columns, Sequence) and not isinstance(columns, str):
        columns = list(columns)
    return name, _step(said["steps"], (*at, "steps")), columns


def _function(name: str, at: tuple[str | int, ...]) -> Any:
    short = {"abs": "absolute"}.get(plain := name.rpartition(".")[2], plain)
    if short not in FUNCTIONS:
        rule = "{key} must be a function of NumPy's that has an operator."
        raise ConvertError(rule, key=_key(at), got=repr(name), fix=nearest(short, FUNCTIONS))
    return getattr(np, short)


def _of_sklearn(name: str) -> Any:
    return pkgutil.resolve_name(f"sklearn.{name}")


def _key(at: Sequence[str | int]) -> str:
    return ".".join(map(str, at))
