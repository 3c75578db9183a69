"""A scikit-learn estimator: named in the config, or made of its steps, and fitted here; or read fitted from a file."""

import pkgutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ortpipe import own_code
from ortpipe.bounded import check_archive
from ortpipe.data.class_weight import weights_of_rows
from ortpipe.data.rows import Data, Rows
from ortpipe.errors import ConfigError, ConvertError, NoRowsError, nearest
from ortpipe.settings import Config, Seed, one_of
from ortpipe.stages.convert.imported import Imported
from ortpipe.stages.convert.rows.compared_rows import missing_values
from ortpipe.stages.convert.sources.estimators import ESTIMATORS, check_supported, class_path
from ortpipe.stages.convert.sources.sklearn_encoders import ENCODERS
from ortpipe.stages.convert.sources.sklearn_graph import build, by_name, check_supported_estimator, form_for, steps_of
from ortpipe.stages.convert.sources.sklearn_transformers import FUNCTIONS, TRANSFORMERS
from ortpipe.stages.convert.sources.sklearn_walk import COMPOSITIONS, PIPELINE
from ortpipe.stages.convert.sources.stored_estimator import check_only_predicts

TRUSTED = [  # in addition to skops's own; a file's own list of types is never trusted
    *(f"sklearn.neural_network._stochastic_optimizers.{name}" for name in ("AdamOptimizer", "SGDOptimizer")),
    *(f"sklearn.feature_selection._univariate_selection.{name}" for name in ("f_classif", "f_regression", "chi2")),
    *(f"sklearn.feature_selection._mutual_info.mutual_info_{kind}" for kind in ("classif", "regression")),
    "sklearn.feature_selection._univariate_selection.r_regression",
    "sklearn.compose._column_transformer.make_column_selector",
    "sklearn.utils._bunch.Bunch",  # of members by name
    *(f"sklearn.cluster.{name}" for name in ("_bisect_k_means._BisectingTree", "_kmeans._kmeans_single_lloyd")),
    *("numpy.dtype", "scipy.sparse._csr.csr_matrix", "scipy.interpolate._bsplines.BSpline"),
    "scipy._lib.array_api_compat.numpy._aliases.asarray",  # of splines
]
PASSES_KEYWORDS_TO = {  # estimators whose fit passes its keywords on to an inner estimator
    "TransformedTargetRegressor": "regressor",
    **{f"{kind}SearchCV": "estimator" for kind in ("Grid", "Randomized", "HalvingGrid", "HalvingRandom")},
}
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
SCALERS = {"standard": "StandardScaler", "minmax": "MinMaxScaler"}


@dataclass(frozen=True)
class SklearnEstimator(Config):
    """An estimator or Pipeline, fitted on the training rows; or a fitted one from a file.

    Attributes:
        estimator: class path, such as `sklearn.linear_model.Ridge`.
        params: keyword arguments of the class or function.
        scaler: `standard` or `minmax` puts that scaler in front, inside the graph.
        steps: instead, those of a Pipeline, each a class or {class: {parameter: value}}, in scikit-learn's terms:
            `[{ColumnTransformer: {transformers: {words: {columns: [city], steps: [OneHotEncoder]}}}}, Ridge]`.
        function: instead, the import path of a function that returns an estimator or Pipeline.
        path: instead, a fitted one on disk: `.skops`, or a pickle (`.pkl`, `.joblib`) with `trust: true`.
        trust: a pickle runs code when it is opened; say true only for files you made.
        seed: the random_state of every part that has none, so that the same config gives the same model.
    """

    estimator: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    scaler: Annotated[str, one_of("scaler", SCALERS)] | None = None
    steps: tuple[Any, ...] | None = None
    function: str | None = None
    path: str | None = field(default=None, metadata={"identity": False})  # `files` are compared by content
    trust: bool = False
    seed: Seed | None = None

    def __post_init__(self) -> None:
        settings = {name: getattr(self, name) for name in ("estimator", "steps", "function", "path")}
        set_names = [name for name, value in settings.items() if value is not None]
        if len(set_names) != 1:
            raise ConfigError(
                "A scikit-learn source is a class path (estimator), steps, a function or a file (path).",
                key=set_names[0] if set_names else "estimator",  # mostly that of an experiment
                got=", ".join(f"{name}={settings[name]}" for name in set_names or settings),
                fix="Set exactly one of {at}estimator, {at}steps, {at}function and {at}path; on the command line "
                "~experiment leaves out what an experiment sets.",
            )
        if self.function is not None:
            own_code.load(self.function, "function")  # load now, so that its code counts in the identity

    def files(self) -> tuple[Path, ...]:
        """Return the existing file that the estimator is read from, if any."""
        path = Path(self.path) if self.path is not None else None
        return (path,) if path is not None and path.is_file() else ()

    def __call__(self, data: Data | None, dtype: str) -> Imported:
        """Make or read the estimator, fit it unless it is fitted, and build its graph."""
        if self.path is not None:
            return from_estimator(read_estimator(Path(self.path), self.trust), data, dtype)
        estimator = self._make()
        settings = estimator.get_params().items()
        seeds = {name: self.seed for name, value in settings if name.endswith("random_state") and value is None}
        return from_estimator(estimator.set_params(**seeds), data, dtype)

    def _make(self) -> Any:
        if self.steps is not None:
            return pipeline_of(self.steps)
        if self.function is not None:
            return self._call(self.function)
        path = str(self.estimator)
        check_supported(path, key="estimator")
        try:
            estimator = pkgutil.resolve_name(path)(**self.params)
        except TypeError as error:
            rule = f"{{key}} must be keywords of {self.estimator}."
            raise ConvertError(rule, key="params", got=error, fix="Correct {key}.") from error
        if self.scaler is None:
            return estimator
        scaler = _sklearn_member(f"preprocessing.{SCALERS[self.scaler]}")()
        return _sklearn_member("pipeline.make_pipeline")(scaler, estimator)

    def _call(self, path: str) -> Any:
        function, rule = own_code.load(path, "function", ConvertError), "{key} must return an estimator or a Pipeline."
        try:
            with own_code.working_folder_first():
                estimator = function(**self.params)
        except Exception as error:
            actual = f"{path} raised {type(error).__name__}: {error}"
            raise ConvertError(rule, key="function", got=actual, fix="Correct the function or {at}params.") from error
        if not hasattr(estimator, "get_params") or isinstance(estimator, type):
            actual = f"{path} returned {estimator!r:.80}"
            raise ConvertError(rule, key="function", got=actual, fix="Return a scikit-learn estimator.")
        return estimator


def read_estimator(path: Path, trust: bool) -> Any:
    """Return the estimator in a .skops file, or with trust in a pickle."""
    if not path.is_file():
        raise ConvertError("{key} must be a file.", key="path", got=path, fix="Check the path.")
    if path.suffix == ".skops":
        try:
            with zipfile.ZipFile(path) as archive:
                check_archive(archive)
            import skops.io

            estimator = skops.io.load(path, trusted=TRUSTED)
        except Exception as error:
            rule = "A .skops file must be readable and hold only types that skops trusts."
            fix = "Save it with skops.io.dump; for types of your own, which it rejects, give a pickle and {at}trust."
            raise ConvertError(rule, got=error, fix=fix) from error
        if not trust:
            check_only_predicts(estimator)
        return estimator
    if not trust:
        raise ConvertError(
            "A pickle runs code when it is opened, so it is opened only on request.",
            got=path,
            key="trust",
            fix="Set {key}=true if you made the file, or save the estimator with skops.io.dump.",
        )
    import joblib

    try:
        return joblib.load(path)
    except Exception as error:
        raise ConvertError(
            "A pickle must be readable with the installed scikit-learn.",
            got=f"{path}: {type(error).__name__}: {error}",
            fix="Save the estimator again with joblib.dump.",
        ) from error


def from_estimator(estimator: Any, data: Data | None, dtype: str) -> Imported:
    """Return an estimator's forward model; an unfitted one is cloned and fitted on the training rows first."""
    from sklearn import base, exceptions
    from sklearn.utils.validation import check_is_fitted

    check_supported_estimator(estimator)
    try:
        check_is_fitted(estimator)
    except exceptions.NotFittedError as error:
        if data is None:
            rule = "Fitting an unfitted estimator needs rows."
            raise NoRowsError(rule, got=type(estimator).__name__, fix="Fit it first, or give data.") from error
        estimator, notes = _fit(base.clone(estimator), data)
        forward = build(estimator, dtype, data.train.head(1))
        return replace(forward, fitted=estimator, notes=(*forward.notes, *notes))
    return build(estimator, dtype, None if data is None else data.train.head(1))


def _fit(estimator: Any, data: Data) -> tuple[Any, list[str]]:
    """Fit an estimator on the training rows, weighted if it takes weights; return it and notes."""
    from threadpoolctl import threadpool_limits

    rows = data.train.sample()
    estimator, notes = with_encoder(estimator, rows)
    features = form_for(estimator, rows).as_estimator_input(rows.inputs)
    _, last, _ = steps_of(estimator)
    weights = {}
    if (weight := weights_of_rows(data.class_weight, rows.label, rows.sample_weight)) is not None:
        if keyword := _weight_keyword(estimator):
            weights[keyword] = weight
        else:
            notes.append(f"{type(last).__name__} was fitted as if every row weighed 1: its fit takes no sample_weight")
    try:
        with threadpool_limits(1):  # one thread, one order of sums: the same bytes on any number of cores
            return estimator.fit(features, rows.label, **weights), notes
    except (ValueError, TypeError) as error:
        counts = {name: column.missing for name, column in rows.kept.items() if column.kind == "number"}
        if name := next((name for name, count in counts.items() if count), None):
            raise missing_values(name, counts[name]) from error
        raise ConvertError(
            "scikit-learn must be able to fit the estimator on the training rows.",
            got=f"{type(last).__name__}: {error}",
            key="params",
            fix="Choose an estimator that fits the labels, or correct {key}.",
        ) from error


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
    encode = _sklearn_member("preprocessing.OneHotEncoder")(handle_unknown="ignore", sparse_output=False)
    columns = _sklearn_member("compose.ColumnTransformer")([("words", encode, [*texts])], remainder="passthrough")
    steps = estimator.steps if class_path(estimator) == PIPELINE else [(type(estimator).__name__.lower(), estimator)]
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    note = f"words are columns of 0 and 1: {listed}; an unknown word is 0 in all of them"
    return _sklearn_member("pipeline.Pipeline")([("columntransformer", columns), *steps]), [note]


def _weight_keyword(estimator: Any) -> str | None:
    """Return the keyword by which weights reach the final estimator's fit, also through outer estimators."""
    from sklearn.utils.validation import has_fit_parameter

    *_, last, path = steps_of(estimator)
    if path:
        keyword = _weight_keyword(last)
        return keyword and f"{path[0]}__{keyword}"
    if has_fit_parameter(last, "sample_weight"):
        return "sample_weight"
    if type(last).__name__ not in PASSES_KEYWORDS_TO:
        return None
    member = getattr(last, PASSES_KEYWORDS_TO[type(last).__name__])
    return _weight_keyword(member) if member is not None else "sample_weight"  # the default is LinearRegression


def pipeline_of(steps: Sequence[Any]) -> Any:
    """Return a Pipeline of these steps; a single step is returned by itself.

    A step is a class, or a class and its parameters: `StandardScaler`, `{PCA: {n_components: 3}}`. The name is enough
    for a class that ortpipe converts itself; others need their path, such as `sklearn.decomposition.KernelPCA`.

    >>> pipeline_of(["StandardScaler", {"Ridge": {"alpha": 0.5}}]).steps[-1]
    ('ridge', Ridge(alpha=0.5))
    """
    return _step(steps, "steps")


def _step(config: Any, at: str) -> Any:
    """Return the step of a config entry: `passthrough`, `drop` and None unchanged, a list as a Pipeline."""
    if config is None or (isinstance(config, str) and config in ("passthrough", "drop")):
        return config
    if isinstance(config, Sequence) and not isinstance(config, str) and config:
        steps = [_step(step, f"{at}.{i}") for i, step in enumerate(config)]
        return steps[0] if len(steps) == 1 else _sklearn_member("pipeline.make_pipeline")(*steps)
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
    if not (isinstance(cls, type) and issubclass(cls, _sklearn_member("base.BaseEstimator"))):
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
        return _sklearn_member(f"feature_selection.{value}")
    name = next(iter(value)) if isinstance(value, Mapping) and len(value) == 1 else ""
    is_class = (value if isinstance(value, str) else name) in PATHS or str(name).startswith("sklearn.")
    if is_class or (key in ("remainder", "transformer", "regressor", "estimator") and isinstance(value, Sequence)):
        return _step(value, at)
    return list(value) if isinstance(value, tuple) and key in ("categories", "knots") else value


def _part(key: str, name: str, config: Any, at: str) -> tuple[Any, ...]:
    if key != "transformers":
        return name, _step(config, at)
    if not isinstance(config, Mapping) or set(config) != {"columns", "steps"}:
        rule = "{key}, a part of a ColumnTransformer, must have columns and steps."
        fix = "Write {columns: [age, fare], steps: [SimpleImputer, StandardScaler]}."
        raise ConvertError(rule, key=at, got=config, fix=fix)
    columns = config["columns"]
    if isinstance(columns, Mapping):
        columns = _sklearn_member("compose.make_column_selector")(**columns)
    elif isinstance(columns, Sequence) and not isinstance(columns, str):
        columns = list(columns)
    return name, _step(config["steps"], f"{at}.steps"), columns


def _function(name: str, at: str) -> Any:
    name_in_numpy = {"abs": "absolute"}.get(last_name := name.rpartition(".")[2], last_name)
    if name_in_numpy not in FUNCTIONS:
        rule = "{key} must be a NumPy function that has an ONNX operator."
        raise ConvertError(rule, key=at, got=repr(name), fix=nearest(name_in_numpy, FUNCTIONS))
    return getattr(np, name_in_numpy)


def _sklearn_member(name: str) -> Any:
    return pkgutil.resolve_name(f"sklearn.{name}")
