"""A baseline on request: scikit-learn's HistGradientBoosting with its defaults, on the same rows as the model."""

import dataclasses

import numpy as np
from sklearn import ensemble
from threadpoolctl import threadpool_limits

from ortpipe.data.pieces import concatenate
from ortpipe.data.row_set import RowSet
from ortpipe.data.teacher import Features
from ortpipe.errors import EvaluateError
from ortpipe.facts import Facts
from ortpipe.metrics import CLASSES
from ortpipe.metrics.predictions import Compared, truth
from ortpipe.metrics.titles import BOOSTING


def check_boosting(facts: Facts) -> None:
    """Raise EvaluateError for a model with another prediction than one class or value per row."""
    several = facts.heads or facts.class_axis is not None or facts.task == "multilabel"
    if several or facts.measured_as != facts.task:
        rule, fix = "{key} needs a model that predicts one class or value per row.", "Set {key}=constant."
        raise EvaluateError(rule, key="baseline", got=BOOSTING, fix=fix)


def boosted(
    facts: Facts, train: RowSet, test_rows: RowSet, tested: Compared, most: int, seed: int
) -> tuple[Compared, str]:
    """Return the predictions of scikit-learn's estimator with its defaults, and a note about its rows and columns."""
    rows, test = (concatenate(list(of.pieces(most))) for of in (train, test_rows))
    true = truth(facts, rows.label)
    if true.ndim > 1 and true.shape[1] > 1:
        check_boosting(dataclasses.replace(facts, class_axis=1))
    kind = ensemble.HistGradientBoostingClassifier if facts.task in CLASSES else ensemble.HistGradientBoostingRegressor
    estimator = kind(random_state=seed)
    features = Features(estimator, rows)
    x, x_test = features(rows), features(test)
    with threadpool_limits(1):  # one thread, one order of sums: byte-identical on any number of cores
        estimator.fit(x, true.reshape(-1), sample_weight=rows.sample_weight)
        if facts.task in CLASSES:
            assert tested.probability is not None
            probability = np.zeros_like(tested.probability)
            probability[:, estimator.classes_] = estimator.predict_proba(x_test)
            entries = tested._replace(label=probability.argmax(axis=1), probability=probability)
        else:
            entries = tested._replace(label=estimator.predict(x_test).reshape(-1, 1))
    words = f", {len(features.categories)} of them as categories" if features.categories else ""
    count, width = x.shape
    return entries, f"{BOOSTING} of scikit-learn is fitted on {count:,} training rows and {width:,} columns{words}"
