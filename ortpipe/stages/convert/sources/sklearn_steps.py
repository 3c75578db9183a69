"""Steps of a scikit-learn Pipeline: those that a config lists, and an encoder of words in front of an estimator."""

import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortpipe.data.rows import Rows
from ortpipe.errors import ConvertError, nearest
from ortpipe.stages.convert.sources.estimators import ESTIMATORS, class_path
from ortpipe.stages.convert.sources.sklearn_columns import ENCODERS
from ortpipe.stages.convert.sources.sklearn_graph import by_name
from ortpipe.stages.convert.sources.sklearn_transformers import FUNCTIONS, TRANSFORMERS
from ortpipe.stages.convert.sources.sklearn_walk import COMPOSITIONS, PIPELINE

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
MANY_WORDS = 10_000  # of a column; more are surely a mistake


def with_encoder(estimator: Any, rows: Rows) -> tuple[Any, list[str]]:
    """Return an estimator with an encoder of the rows' words in front, unless it reads columns by name; and notes."""
    texts = {name: column.kind for name, column in rows.kept.items() if column.kind != "number" and not column.of}
    if not texts or by_name(estimator):
        return estimator, []
    dates = [name for name, kind in texts.items() if kind == "date"]
    counts = {name: len(set(rows.inputs[name].tolist())) for name in texts}
    if dates or max(counts.values()) > MANY_WORDS:
        raise ConvertError(
            f"An estimator gets words as a column of 0 and 1 for each, at most {MANY_WORDS:,}, and no dates.",
            got=f"dates in column {dates[0]!r}" if dates else f"{max(counts.values()):,} words in one column",
            fix="Leave the column out of {@data.source.inputs}, choose a network ({@convert}=mlp), or set {at}steps.",
        )
    encode = sklearn_member("preprocessing.OneHotEncoder")(handle_unknown="ignore", sparse_output=False)
    columns = sklearn_member("compose.ColumnTransformer")([("words", encode, [*texts])], remainder="passthrough")
    steps = estimator.steps if class_path(estimator) == PIPELINE else [(type(estimator).__name__.lower(), estimator)]
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    note = f"words are columns of 0 and 1: {listed}; an unknown word is 0 in all of them"
    return sklearn_member("pipeline.Pipeline")([("columntransformer", columns), *steps]), [note]


def step_of(config: Any, at: str) -> Any:
    """Return the step of a config entry: `passthrough`, `drop` and None unchanged, a list as a Pipeline.

    A step is a class, or a class and its parameters: `StandardScaler`, `{PCA: {n_components: 3}}`. The name is enough
    for a class that ortpipe converts itself; others need their path, such as `sklearn.decomposition.KernelPCA`. A
    single step of a list is returned by itself. Errors name the entry by `at`.

    >>> step_of(["StandardScaler", {"Ridge": {"alpha": 0.5}}], "steps").steps[-1]
    ('ridge', Ridge(alpha=0.5))
    """
    if config is None or (isinstance(config, str) and config in ("passthrough", "drop")):
        return config
    if isinstance(config, Sequence) and not isinstance(config, str) and config:
        steps = [step_of(step, f"{at}.{i}") for i, step in enumerate(config)]
        return steps[0] if len(steps) == 1 else sklearn_member("pipeline.make_pipeline")(*steps)
    name, params = (config, None) if isinstance(config, str) else next(iter(config.items()), (None, None))
    if not isinstance(name, str) or (isinstance(config, Mapping) and len(config) != 1):
        rule = "{key} must be a class of scikit-learn, or a class with its parameters."
        raise ConvertError(rule, key=at, got=config, fix="Write Ridge, or {Ridge: {alpha: 0.5}}.")
    cls = _class(name, at)
    keywords = {key: _value(key, value, f"{at}.{key}") for key, value in (params or {}).items()}
    try:
        return cls(**keywords)
    except TypeError as error:
        rule = f"{{key}} must be parameters of {name}."
        raise ConvertError(rule, key=at, got=error, fix="Correct {key}.") from error


def _class(name: str, at: str) -> Any:
    path = PATHS.get(name, name)
    try:
        cls = pkgutil.resolve_name(path) if path.startswith("sklearn.") else None
    except (ImportError, AttributeError, ValueError):
        cls = None
    if not (isinstance(cls, type) and issubclass(cls, sklearn_member("base.BaseEstimator"))):
        rule = "{key} must be a class of scikit-learn."
        fix = f"{nearest(name, PATHS)} Give other classes by path, your own in a function that returns the Pipeline."
        raise ConvertError(rule, key=at, got=repr(name), fix=fix)
    return cls


def _value(key: str, value: Any, at: str) -> Any:
    """Return a parameter's value: named parts as tuples, estimators as instances, others unchanged."""
    if key in NAMED and isinstance(value, Mapping):
        return [_part(key, name, part, f"{at}.{name}") for name, part in value.items()]
    if key == "func" and isinstance(value, str):
        return _function(value, at)
    if key == "score_func" and value in SCORES:
        return sklearn_member(f"feature_selection.{value}")
    name = next(iter(value)) if isinstance(value, Mapping) and len(value) == 1 else ""
    is_class = (value if isinstance(value, str) else name) in PATHS or str(name).startswith("sklearn.")
    if is_class or (key in ("remainder", "transformer", "regressor", "estimator") and isinstance(value, Sequence)):
        return step_of(value, at)
    return list(value) if isinstance(value, tuple) and key in ("categories", "knots") else value


def _part(key: str, name: str, config: Any, at: str) -> tuple[Any, ...]:
    if key != "transformers":
        return name, step_of(config, at)
    if not isinstance(config, Mapping) or set(config) != {"columns", "steps"}:
        rule = "{key}, a part of a ColumnTransformer, must have columns and steps."
        fix = "Write {columns: [age, fare], steps: [SimpleImputer, StandardScaler]}."
        raise ConvertError(rule, key=at, got=config, fix=fix)
    columns = config["columns"]
    if isinstance(columns, Mapping):
        columns = sklearn_member("compose.make_column_selector")(**columns)
    elif isinstance(columns, Sequence) and not isinstance(columns, str):
        columns = list(columns)
    return name, step_of(config["steps"], f"{at}.steps"), columns


def _function(name: str, at: str) -> Any:
    name_in_numpy = {"abs": "absolute"}.get(last_name := name.rpartition(".")[2], last_name)
    if name_in_numpy not in FUNCTIONS:
        rule = "{key} must be a NumPy function that has an ONNX operator."
        raise ConvertError(rule, key=at, got=repr(name), fix=nearest(name_in_numpy, FUNCTIONS))
    return getattr(np, name_in_numpy)


def sklearn_member(name: str) -> Any:
    """Return a class or function of scikit-learn by its path inside the package."""
    return pkgutil.resolve_name(f"sklearn.{name}")
