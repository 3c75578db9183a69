"""A Pipeline from a config: a list of steps in scikit-learn's own terms."""

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
NAMED = {"transformers", "transformer_list", "steps", "estimators"}  # parameters that hold named parts


def pipeline_of(steps: Sequence[Any]) -> Any:
    """Return a Pipeline of these steps; a single step is returned by itself.

    A step is a class, or a class and its parameters: `StandardScaler`, `{PCA: {n_components: 3}}`. The name is enough
    for a class that ortpipe converts itself; others need their path, such as `sklearn.decomposition.KernelPCA`.

    >>> pipeline_of(["StandardScaler", {"Ridge": {"alpha": 0.5}}]).steps[-1]
    ('ridge', Ridge(alpha=0.5))
    """
    return _step(steps, ("steps",))


def _step(config: Any, at: tuple[str | int, ...]) -> Any:
    """Return the step of a config entry: `passthrough`, `drop` and None unchanged, a list as a Pipeline."""
    if config is None or (isinstance(config, str) and config in ("passthrough", "drop")):
        return config
    if isinstance(config, Sequence) and not isinstance(config, str) and config:
        steps = [_step(step, (*at, i)) for i, step in enumerate(config)]
        return steps[0] if len(steps) == 1 else _sklearn_member("pipeline.make_pipeline")(*steps)
    name, params = (config, None) if isinstance(config, str) else next(iter(config.items()), (None, None))
    if not isinstance(name, str) or (isinstance(config, Mapping) and len(config) != 1):
        rule = "{key} must be a class of scikit-learn, or a class with its parameters."
        raise ConvertError(rule, key=_key(at), got=config, fix="Write Ridge, or {Ridge: {alpha: 0.5}}.")
    cls = _class(name, at)
    keywords = {key: _value(key, value, (*at, key)) for key, value in (params or {}).items()}
    try:
        return cls(**keywords)
    except TypeError as error:
        rule = f"{{key}} must be parameters of {name}."
        raise ConvertError(rule, key=_key(at), got=error, fix="Correct {key}.") from error


def _class(name: str, at: tuple[str | int, ...]) -> Any:
    path = PATHS.get(name, name)
    try:
        cls = pkgutil.resolve_name(path) if path.startswith("sklearn.") else None
    except (ImportError, AttributeError, ValueError):
        cls = None
    if not (isinstance(cls, type) and issubclass(cls, _sklearn_member("base.BaseEstimator"))):
        rule = "{key} must be a class of scikit-learn."
        fix = f"{nearest(name, PATHS)} Give other classes by path, your own in a function that returns the Pipeline."
        raise ConvertError(rule, key=_key(at), got=repr(name), fix=fix)
    return cls


def _value(key: str, value: Any, at: tuple[str | int, ...]) -> Any:
    """Return a parameter's value: named parts as tuples, estimators as instances, others unchanged."""
    if key in NAMED and isinstance(value, Mapping):
        return [_part(key, name, part, (*at, name)) for name, part in value.items()]
    if key == "func" and isinstance(value, str):
        return _function(value, at)
    if key == "score_func" and value in SCORES:
        return _sklearn_member(f"feature_selection.{value}")
    is_class = value in PATHS if isinstance(value, str) else isinstance(value, Mapping) and _names_a_class(value)
    if is_class or (key in ("remainder", "transformer", "regressor", "estimator") and isinstance(value, Sequence)):
        return _step(value, at)
    return list(value) if isinstance(value, tuple) and key in ("categories", "knots") else value


def _names_a_class(value: Mapping[str, Any]) -> bool:
    [*names] = value
    return len(names) == 1 and (names[0] in PATHS or str(names[0]).startswith("sklearn."))


def _part(key: str, name: str, config: Any, at: tuple[str | int, ...]) -> tuple[Any, ...]:
    if key != "transformers":
        return name, _step(config, at)
    if not isinstance(config, Mapping) or set(config) != {"columns", "steps"}:
        rule = "{key}, a part of a ColumnTransformer, must have columns and steps."
        fix = "Write {columns: [age, fare], steps: [SimpleImputer, StandardScaler]}."
        raise ConvertError(rule, key=_key(at), got=config, fix=fix)
    columns = config["columns"]
    if isinstance(columns, Mapping):
        columns = _sklearn_member("compose.make_column_selector")(**columns)
    elif isinstance(columns, Sequence) and not isinstance(columns, str):
        columns = list(columns)
    return name, _step(config["steps"], (*at, "steps")), columns


def _function(name: str, at: tuple[str | int, ...]) -> Any:
    name_in_numpy = {"abs": "absolute"}.get(last_name := name.rpartition(".")[2], last_name)
    if name_in_numpy not in FUNCTIONS:
        rule = "{key} must be a NumPy function that has an ONNX operator."
        raise ConvertError(rule, key=_key(at), got=repr(name), fix=nearest(name_in_numpy, FUNCTIONS))
    return getattr(np, name_in_numpy)


def _sklearn_member(name: str) -> Any:
    return pkgutil.resolve_name(f"sklearn.{name}")


def _key(at: Sequence[str | int]) -> str:
    return ".".join(map(str, at))
