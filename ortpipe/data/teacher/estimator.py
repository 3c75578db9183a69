"""Estimators as teachers: made or opened, fitted, and their predictions as numbers."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from sklearn import base, exceptions
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from ortpipe import own, own_code
from ortpipe.data.labels import MOST_CLASSES
from ortpipe.data.teacher.config import TeacherConfig
from ortpipe.errors import DataError, OrtpipeError
from ortpipe.graph.files import serial


def teacher_of(config: TeacherConfig, label: np.ndarray) -> tuple[Any, Mapping[str, Any]]:
    """Return the estimator, fitted or not, and the part of a key that identifies it."""
    key = {} if config.path is None else {"file": _content(Path(config.path))}
    if config.estimator is None:
        estimator = _opened(str(config.path))
    else:
        factory, name = _loaded(config.estimator, label)
        key |= {"name": name, "code": own_code.code(factory)}
        of_file = {} if config.path is None else {"path": config.path}
        with own.blamed(factory, "teacher", DataError), own_code.working_folder_first():
            estimator = factory(**of_file, **config.params)
    if not callable(getattr(estimator, "predict", None)):
        rule = "A teacher must have the method predict."
        fix = "Give a class of estimators, or a function that makes one."
        raise DataError(rule, key=_key(config), got=f"{type(estimator).__name__} without predict", fix=fix)
    if isinstance(estimator, base.BaseEstimator) and not is_fitted(estimator):
        params = estimator.get_params().items()
        seed = config.seed % 2**32
        estimator.set_params(**{n: seed for n, value in params if n.endswith("random_state") and value is None})
    return estimator, key


def _key(config: TeacherConfig) -> str:
    return "path" if config.estimator is None else "estimator"


def _content(path: Path) -> str:
    """Return the hash of a file; of an .onnx file, with its external data."""
    files = serial.files(path) if path.suffix == ".onnx" else (path,)
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()


def _opened(path: str) -> Any:
    try:
        with own_code.working_folder_first():
            return joblib.load(path)
    except Exception as error:
        fix = "Save the estimator again with joblib.dump, with the installed versions."
        rule = "A pickle must be readable with the installed packages."
        raise DataError(rule, key="path", got=f"{path}: {type(error).__name__}: {error}", fix=fix) from error


def _loaded(path: str, label: np.ndarray) -> tuple[Any, str]:
    """Return the class or function at a path, and the full path; labels decide about a missing ending."""
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    try:
        return own_code.load(f"{module}:{name}", "estimator", DataError), f"{module}:{name}"
    except DataError as error:
        ending = "Classifier" if are_classes(label) else "Regressor"
        try:
            return own_code.load(f"{module}:{name}{ending}", "estimator", DataError), f"{module}:{name}{ending}"
        except DataError:
            raise error from None


def are_classes(label: np.ndarray) -> bool:
    """Return whether labels are classes: text, truth values, or few different integers."""
    return label.dtype.kind != "f" and (label.dtype.kind not in "iu" or len(np.unique(label)) <= MOST_CLASSES)


def is_fitted(estimator: Any) -> bool:
    """Return whether an estimator can predict without being fitted here."""
    if not hasattr(estimator, "fit"):
        return True
    try:
        check_is_fitted(estimator)
    except exceptions.NotFittedError:
        return False
    return True


def fitted(estimator: Any, features: Any, label: np.ndarray, weight: np.ndarray | None) -> Any:
    """Return a copy of an estimator, fitted on rows, weighted if it takes weights."""
    new = base.clone(estimator) if isinstance(estimator, base.BaseEstimator) else copy.deepcopy(estimator)
    weights = {"sample_weight": weight} if weight is not None and has_fit_parameter(new, "sample_weight") else {}
    try:
        return new.fit(features, label, **weights)
    except Exception as error:
        raise DataError(
            "The teacher must be able to fit the training rows.",
            key="estimator",
            got=f"{type(new).__name__}: {type(error).__name__}: {error}",
            fix="Choose an estimator for such rows and labels, or correct {at}params.",
        ) from error


def classifies(estimator: Any, label: np.ndarray) -> bool:
    """Return whether an estimator's predictions are classes."""
    named = isinstance(estimator, base.BaseEstimator) and base.is_classifier(estimator)
    return label.dtype.kind not in "iuf" or named or hasattr(estimator, "predict_proba")


def predictions_of(estimator: Any, features: Any, classes: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    """Return predictions for rows, float64: the share of each class, or values of the labels' shape per row.

    Raises:
        DataError: the estimator knows another class, or its predictions have another shape or are not finite.
    """
    by_class = classes is not None and hasattr(estimator, "predict_proba")
    try:
        raw = np.asarray(estimator.predict_proba(features) if by_class else estimator.predict(features))
    except OrtpipeError as error:
        error.got = f"{error.got}, for the teacher {type(estimator).__name__}"
        raise
    except Exception as error:
        rule = "The teacher must predict the model's rows, which are columns as in the table."
        got = f"{type(estimator).__name__}: {type(error).__name__}: {error}"
        raise DataError(
            rule, got=got, fix="Fit it on these columns; a Pipeline may begin with its encoders."
        ) from error
    if classes is not None:
        raw = _by_class(raw if by_class else _one_hot(raw, classes), getattr(estimator, "classes_", classes), classes)
    count, expected = len(features), (len(features), *shape)
    if raw.shape != expected and raw.size == np.prod(expected):
        raw = raw.reshape(expected)
    if raw.shape != expected or not np.isfinite(raw.astype(np.float64)).all():
        got = (
            f"predictions of shape {raw.shape} for {count:,} rows"
            if raw.shape != expected
            else "nan or infinite predictions"
        )
        rule, fix = "The teacher must return a finite prediction for every row.", "Choose a teacher for such labels."
        raise DataError(rule, got=f"{type(estimator).__name__}: {got}, expected {expected}", fix=fix)
    return raw.astype(np.float64)


def _one_hot(predictions: np.ndarray, classes: np.ndarray) -> np.ndarray:
    if unknown := sorted(
        {str(name) for name in predictions.ravel().tolist()} - {str(name) for name in classes.tolist()}
    ):
        _reject_classes(unknown, classes)
    return (predictions.reshape(-1, 1).astype(str) == classes.astype(str)).astype(np.float64)


def _by_class(shares: np.ndarray, names_of_shares: Any, classes: np.ndarray) -> np.ndarray:
    """Return the shares of the labels' classes in ascending order; a class that a fold lacks has share 0."""
    places = {name: place for place, name in enumerate(classes.tolist())}
    names = np.asarray(names_of_shares).tolist()
    if shares.ndim != 2 or shares.shape[1] != len(names) or not set(names) <= set(places):
        _reject_classes(names, classes)
    ordered = np.zeros((len(shares), len(classes)))
    ordered[:, [places[name] for name in names]] = shares
    return ordered


def _reject_classes(names: Any, classes: np.ndarray) -> None:
    rule, fix = "The teacher must know the classes of the labels.", "Fit it on labels as the data write them."
    raise DataError(rule, got=f"{str(names)[:200]}; the labels are {str(classes.tolist())[:200]}", fix=fix)
