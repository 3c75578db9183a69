"""A scikit-learn estimator: named in the config, or made of its steps, and fitted here; or read fitted from a file."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from ortpipe import own_code
from ortpipe.bounded import check_archive
from ortpipe.data.class_weight import weights_of_rows
from ortpipe.doors import later
from ortpipe.errors import ConfigError, ConvertError, NoRowsError
from ortpipe.settings import Config, Seed, one_of
from ortpipe.stages.convert.rows.compared_rows import missing_values
from ortpipe.stages.convert.sources.stored_estimator import check_only_predicts

if TYPE_CHECKING:  # the config alone needs no graph
    from ortpipe.data.rows import Data
    from ortpipe.stages.convert.imported import Imported
    from ortpipe.stages.convert.sources.estimators import check_supported
    from ortpipe.stages.convert.sources.sklearn_graph import build, check_supported_estimator, form_for, steps_of
    from ortpipe.stages.convert.sources.sklearn_steps import sklearn_member, step_of, with_encoder
else:
    later(__name__)

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

    fits: ClassVar[bool] = True

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
            return step_of(self.steps, "steps")
        if self.function is not None:
            return self._call(self.function)
        check_supported(str(self.estimator), key="estimator")
        estimator = step_of({str(self.estimator): self.params}, "params")
        if self.scaler is None:
            return estimator
        scaler = sklearn_member(f"preprocessing.{SCALERS[self.scaler]}")()
        return sklearn_member("pipeline.make_pipeline")(scaler, estimator)

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
