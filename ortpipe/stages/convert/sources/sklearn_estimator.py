"""A scikit-learn estimator: named in the config and fitted here, or fitted before and read from a file."""

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from ortpipe.data.rows import Data
from ortpipe.errors import ConfigError, ConvertError
from ortpipe.settings import Config, one_of
from ortpipe.stages.convert.sources import Forward
from ortpipe.stages.convert.sources.estimators import ESTIMATORS, check_supported
from ortpipe.stages.convert.sources.sklearn_graph import build, check_supported_estimator, steps_of
from ortpipe.stages.convert.sources.sklearn_rows import form_for

TRUSTED = [f"sklearn.neural_network._stochastic_optimizers.{name}" for name in ("AdamOptimizer", "SGDOptimizer")]
SCALERS = {"standard": "StandardScaler", "minmax": "MinMaxScaler"}


@dataclass(frozen=True)
class SklearnEstimator(Config):
    """An estimator by class path and parameters, fitted on the training rows; or a fitted one from a file.

    Attributes:
        estimator: class path, such as `sklearn.linear_model.Ridge`.
        params: the keywords it is made with.
        scaler: `standard` or `minmax` puts that scaler in front, inside the graph.
        path: a fitted estimator or Pipeline on disk: `.skops`, or a pickle (`.pkl`, `.joblib`) with `trust: true`.
        trust: a pickle runs code when it is opened; say true only for files you made.
    """

    estimator: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    scaler: Annotated[str, one_of("scaler", SCALERS)] | None = None
    path: str | None = field(default=None, metadata={"identity": False})  # `files` are told apart by content
    trust: bool = False

    def __post_init__(self) -> None:
        if (self.estimator is None) == (self.path is None):
            raise ConfigError(
                "A scikit-learn source is either a class path (estimator) or a file (path).",
                key="estimator" if self.path is None else "path",
                got=f"estimator={self.estimator}, path={self.path}",
                fix="Set exactly one of {at}estimator and {at}path.",
            )

    def files(self) -> tuple[Path, ...]:
        """Return what is read, of that what is there: the file, if the estimator comes from one."""
        path = Path(self.path) if self.path is not None else None
        return (path,) if path is not None and path.is_file() else ()

    def __call__(self, data: Data | None, dtype: str) -> Forward:
        """Make or read the estimator, fit it if it is not, and build its graph."""
        estimator = self._make() if self.path is None else read_estimator(Path(self.path), self.trust)
        return from_estimator(estimator, data, dtype)

    def _make(self) -> Any:
        from sklearn import preprocessing
        from sklearn.pipeline import make_pipeline

        path = str(self.estimator)
        check_supported(ESTIMATORS, path, "The estimator", key="estimator")
        try:
            estimator = pkgutil.resolve_name(path)(**self.params)
        except TypeError as error:
            rule = f"{{key}} must be keywords of {self.estimator}."
            raise ConvertError(rule, key="params", got=error, fix="Correct {key}.") from error
        if self.scaler is None:
            return estimator
        return make_pipeline(getattr(preprocessing, SCALERS[self.scaler])(), estimator)


def read_estimator(path: Path, trust: bool) -> Any:
    """Return what a .skops file holds, or with trust a pickle."""
    if not path.is_file():
        raise ConvertError("{key} must be a file.", key="path", got=path, fix="Check the path.")
    if path.suffix == ".skops":
        import skops.io

        try:
            return skops.io.load(path, trusted=TRUSTED)
        except Exception as error:
            rule = "A .skops file must be readable and hold only types that skops trusts."
            raise ConvertError(rule, got=error, fix="Save it with skops.io.dump.") from error
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


def from_estimator(estimator: Any, data: Data | None, dtype: str) -> Forward:
    """Return an estimator's forward model; an unfitted one is cloned and fitted on the training rows first."""
    from sklearn.base import clone
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    check_supported_estimator(estimator)
    try:
        check_is_fitted(estimator)
    except NotFittedError as error:
        if data is None:
            rule = "Fitting an unfitted estimator needs rows."
            raise ConvertError(rule, got=type(estimator).__name__, fix="Fit it first, or give data.") from error
        estimator = _fit(clone(estimator), data)
        return replace(build(estimator, dtype, data.train.head(1)), fitted=estimator)
    return build(estimator, dtype, None if data is None else data.train.head(1))


def _fit(estimator: Any, data: Data) -> Any:
    from sklearn.utils.validation import has_fit_parameter
    from threadpoolctl import threadpool_limits

    rows = data.train.sample()
    given = form_for(estimator, rows).given(rows.inputs)
    _, last, name = steps_of(estimator)
    weights = {}
    if rows.sample_weight is not None and has_fit_parameter(last, "sample_weight"):
        weights["__".join((*name, "sample_weight"))] = rows.sample_weight
    try:
        with threadpool_limits(1):  # one thread sums in one order: the same bytes on any number of cores
            return estimator.fit(given, rows.label, **weights)
    except (ValueError, TypeError) as error:
        raise ConvertError(
            "scikit-learn must be able to fit the estimator on the training rows.",
            got=f"{type(last).__name__}: {error}",
            key="params",
            fix="Choose an estimator that fits the labels, or correct {key}.",
        ) from error
