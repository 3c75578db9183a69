"""OrtClassifier."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d

from ortpipe import Facts
from ortpipe.errors import ConfigError, DataError
from ortpipe.metrics.elements import classes_last
from ortpipe.metrics.predictions import predicted
from ortpipe.sklearn.base import OrtEstimator

LEAST = 1e-12  # probabilities are clipped to [LEAST, 1 − LEAST] if a model has no raw scores


@dataclass(eq=False, repr=False, kw_only=True)
class OrtClassifier(ClassifierMixin, OrtEstimator):  # type: ignore[misc]
    """A classifier for two or more classes, or several labels per row [N, K], trained by ortpipe.

    Arguments and attributes are those of `OrtEstimator`, and:

    Args:
        class_weight: `balanced`, or {class: weight}: the factor of the weights of the class's rows. That of a
            scikit-learn `model` counts too.

    Attributes:
        classes_: the classes, sorted: columns of `predict_proba`.

    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True, as_frame=True)
    >>> classifier = OrtClassifier(hidden=(16,), epochs=30).fit(X, y)
    >>> classifier.score(X, y) > 0.95, classifier.predict_proba(X[:2]).shape
    (True, (2, 3))
    >>> [output.name for output in classifier.onnx_.graph.output]
    ['label', 'probabilities']
    """

    class_weight: str | Mapping[Any, float] | None = None

    @property
    def _target_checks(self) -> dict[str, Any]:
        return {}

    def _read_labels(self, y: np.ndarray, classes: Any, *, goes_on: bool) -> np.ndarray:
        if y.dtype == object and len({isinstance(label, str) for label in y.ravel()}) > 1:
            rule, fix = "Labels must be all strings or all numbers.", "Make all of them strings: y.astype(str)."
            raise DataError(rule, got="both", fix=fix)
        check_classification_targets(y)
        if type_of_target(y).startswith("multilabel"):
            return self._read_multilabel(y, goes_on=goes_on)
        labels = column_or_1d(y, warn=True)
        label_values = np.unique(labels)
        if not goes_on:
            self._set_classes(label_values if classes is None else np.unique(classes))
        classes_seen = self.classes_.tolist()
        if unknown := [label for label in label_values.tolist() if label not in classes_seen]:
            raise DataError(
                "Labels must be among the classes of the first call.",
                got=f"{unknown[0]!r}; classes {', '.join(map(repr, classes_seen[:10]))}",
                fix="Name all classes in the first partial_fit: classes=[…].",
            )
        return labels

    def _read_multilabel(self, y: np.ndarray, *, goes_on: bool) -> np.ndarray:
        if not goes_on:
            self._task, self.classes_ = "multilabel", np.arange(y.shape[1])
        if y.shape[1:] != self.classes_.shape:
            rule, fix = "Rows must have as many labels as in the first call.", f"Give {len(self.classes_)} columns."
            raise DataError(rule, got=f"{y.shape[1]} columns", fix=fix)
        return y.astype(np.int64)

    def _set_classes(self, classes: np.ndarray) -> None:
        if len(classes) < 2:
            rule, fix = "A classifier needs two classes or more.", "Give rows of another class too."
            raise DataError(rule, got=f"1 class among the labels: {classes.tolist()[0]!r}", fix=fix)
        self._task, self.classes_ = "binary" if len(classes) == 2 else "multiclass", classes

    def _take_classes(self, facts: Facts) -> None:
        if facts.classes is None or len(facts.classes) == len(self.classes_):
            return
        self.classes_ = np.array(sorted(facts.classes, key=lambda name: (isinstance(name, str), name)))

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one pass over these rows, continuing from the last call; the first one sets the scale of X.

        Args:
            X: features [N, K].
            y: labels.
            classes: all classes, in the first call; by default those of y.
            sample_weight: [N].
        """
        if classes is not None and hasattr(self, "classes_") and not np.array_equal(np.unique(classes), self.classes_):
            rule, fix = "{key} must be the same in every partial_fit.", "Leave {key} out after the first one."
            raise ConfigError(rule, key="classes", got=np.unique(classes).tolist(), fix=fix)
        return self._partial_fit(X, y, sample_weight, classes)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most likely class of each row [N]; for several labels 1 or 0 [N, K]."""
        scores = self.decision_function(X)
        if self._predictor.facts.task == "multilabel":
            return (scores > 0).astype(np.int64)
        return self.classes_[(scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class [N, classes]; for several labels that of 1 [N, K]."""
        facts, raw = self._predictor.facts, self._predict(X)
        _, probability = predicted(facts, raw)
        assert probability is not None
        return self._sorted(facts, probability.astype(raw.dtype))

    def decision_function(self, X: Any) -> np.ndarray:
        """Return raw scores [N, K]; for two classes that of the second [N], above 0 if that is the more likely one."""
        facts = self._predictor.facts
        if facts.logits is None:
            p = np.clip(self.predict_proba(X), LEAST, 1 - LEAST)
            scores = np.log(p) - (np.log1p(-p) if facts.task == "multilabel" else 0)
        else:
            scores = self._sorted(facts, classes_last(self._predict(X, facts.logits), facts.class_axis))
        if facts.task != "binary":
            return scores
        return scores[:, 0] if scores.shape[1] == 1 else scores[:, 1] - scores[:, 0]

    def _sorted(self, facts: Facts, columns: np.ndarray) -> np.ndarray:
        """Reorder the columns from the model's classes to `classes_`."""
        if facts.classes is None or columns.shape[1] != len(facts.classes):
            return columns
        order = [facts.classes.index(name) for name in self.classes_.tolist()]
        return columns if order == sorted(order) else columns[:, order]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
