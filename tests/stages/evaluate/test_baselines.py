"""Baselines equal scikit-learn's DummyClassifier, DummyRegressor and HistGradientBoosting on the same rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    ConvertConfig,
    EvaluateConfig,
    Rows,
    SplitConfig,
    TrainConfig,
    add_loss,
    convert,
    derive,
    evaluate,
    split,
    train,
)
from ortpipe.data.raw_columns import RawColumn
from ortpipe.errors import EvaluateError
from ortpipe.stages.convert.sources import SOURCES
from ortpipe.stages.evaluate.baselines import BaselineFit

RNG = np.random.default_rng(3)
X = RNG.normal(size=(160, 4)).astype(np.float32)
WEIGHT = RNG.uniform(0.2, 2, 160)
LABELS = {
    "binary": np.where(X[:, 0] + RNG.normal(0, 0.5, 160) > 0.3, "yes", "no"),
    "multiclass": np.array(["a", "b", "c"])[np.digitize(X[:, 1], [-0.2, 1.0])],
    "regression": X[:, 2] * 3 + RNG.normal(0, 1, 160) + 5,
}
LOSS = {"binary": "log", "multiclass": "cross_entropy", "regression": "l2"}


def evaluated(rows: Rows, task: str, **settings: object) -> tuple[object, object]:
    data = split(rows, SplitConfig(test=0.3))
    model = convert(None, ConvertConfig(SOURCES["mlp"](hidden=(), dropout=0.0)), data=data)
    gradient = derive(
        add_loss(model, AddLossConfig(LOSSES[LOSS[task]](), sample_weight=rows.sample_weight is not None))
    )
    artifact = train(gradient, TrainConfig(OPTIMIZERS["sgd"](lr=0.01), epochs=1), data=data)
    reports: list[object] = []
    result = evaluate(artifact, EvaluateConfig(**settings), data=data, report=reports.append)  # type: ignore[arg-type]
    boosting = [BaselineFit("HistGradientBoosting", ended=ended) for ended in (False, True)]
    assert reports == (boosting if "baseline" in settings else [])
    return result, data


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("task", LABELS)
def test_the_constant_baseline_is_scikit_learns_dummy(task: str, weight: np.ndarray | None) -> None:
    result, data = evaluated(Rows({"X": X}, LABELS[task], weight), task)
    fit, test = data.train, data.test
    table = {name: row["baseline"] for name, row in result.facts.metrics.items()}
    kind = DummyRegressor() if task == "regression" else DummyClassifier(strategy="prior")
    dummy = kind.fit(fit.inputs["X"], fit.label, sample_weight=fit.sample_weight)
    predicted, w = dummy.predict(test.inputs["X"]), test.sample_weight
    if task == "regression":
        expected = metrics.mean_squared_error(test.label, predicted, sample_weight=w)
        assert table["mean_squared_error"] == pytest.approx(expected)
        assert table["r2"] == pytest.approx(metrics.r2_score(test.label, predicted, sample_weight=w))
        return
    probability = dummy.predict_proba(test.inputs["X"])
    assert table["log_loss"] == pytest.approx(metrics.log_loss(test.label, probability, sample_weight=w))
    assert table["accuracy"] == pytest.approx(metrics.accuracy_score(test.label, predicted, sample_weight=w))
    assert table["balanced_accuracy"] == pytest.approx(1 / len(dummy.classes_))


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_boosting_gets_the_same_rows_with_words_as_categories_and_dates_as_days_and_months(task: str) -> None:
    words, days = RNG.choice(["red", "green", ""], 160), RNG.integers(0, 900, 160)
    dates = (np.datetime64("2020-01-01") + days).astype(str)
    inputs = {"x": X[:, 0], "colour": words, "when": dates}
    kept = {"x": RawColumn("number"), "colour": RawColumn("word"), "when": RawColumn("date")}
    result, data = evaluated(Rows(inputs, LABELS[task], kept=kept), task, baseline="HistGradientBoosting")
    [note] = [note for note in result.facts.lineage[-1]["notes"] if "Boosting" in note]
    assert note == (
        f"HistGradientBoosting of scikit-learn is fitted on {len(data.train.label)} training rows and 5 columns, "
        "1 of them as categories"
    )

    def features(rows: Rows) -> np.ndarray:
        codes = np.select([rows.inputs["colour"] == word for word in ("green", "red")], [0.0, 1.0], np.nan)
        stamps = rows.inputs["when"].astype("datetime64[D]")
        months = stamps.astype("datetime64[M]").astype(int) % 12 + 1
        weekdays = (stamps.astype(int) + 3) % 7  # 1970-01-01 was a Thursday
        return np.stack([rows.inputs["x"], codes, stamps.astype(float), months, weekdays], axis=1)

    kind = HistGradientBoostingClassifier if task == "binary" else HistGradientBoostingRegressor
    oracle = kind(categorical_features=[1], random_state=0).fit(features(data.train), data.train.label)
    found = {name: row["HistGradientBoosting"] for name, row in result.facts.metrics.items()}
    predicted = oracle.predict(features(data.test))
    if task == "binary":
        assert found["accuracy"] == metrics.accuracy_score(data.test.label, predicted)
        assert found["log_loss"] == pytest.approx(
            metrics.log_loss(data.test.label, oracle.predict_proba(features(data.test)))
        )
    else:
        assert found["r2"] == pytest.approx(metrics.r2_score(data.test.label, predicted))


def test_boosting_of_several_values_per_row_is_an_error() -> None:
    with pytest.raises(EvaluateError, match="one class or value per row"):
        evaluated(Rows({"X": X}, X[:, :2]), "regression", baseline="HistGradientBoosting")
