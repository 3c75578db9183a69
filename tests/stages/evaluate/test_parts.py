"""Metrics of parts of the rows are scikit-learn's of those rows; intervals are percentiles of draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from ortpipe.data.raw_columns import RawColumn
from ortpipe.data.rows import Data, Rows
from ortpipe.data.slices import MOST_NUMBERS, MOST_VALUES, column_of, columns_of, slice_by_value
from ortpipe.errors import DataError, EvaluateError
from ortpipe.metrics import METRICS
from ortpipe.metrics.predictions import Compared
from ortpipe.stages.convert.stage import convert
from ortpipe.stages.evaluate.config import EvaluateConfig
from ortpipe.stages.evaluate.early import check
from ortpipe.stages.evaluate.parts import by_value, intervals
from ortpipe.stages.evaluate.stage import evaluate

RNG = np.random.default_rng(0)
TRUTH, GUESS = RNG.normal(size=(2, 60, 1))
GUESS = TRUTH + 0.5 * GUESS
WORDS = RNG.choice(["a", "b", "c"], 60)
TWO = {name: METRICS[name] for name in ("r2", "mean_absolute_error")}
ENTRIES = Compared(TRUTH, GUESS, None, None)


def test_each_part_has_the_metrics_of_its_rows() -> None:
    weight = RNG.uniform(0.5, 2, 60)
    found = by_value(TWO, ENTRIES._replace(weight=weight), WORDS)
    assert list(found) == ["a", "b", "c"]
    for word, measured in found.items():
        at = word == WORDS
        assert measured["rows"] == at.sum()
        assert measured["r2"] == pytest.approx(metrics.r2_score(TRUTH[at], GUESS[at], sample_weight=weight[at]))


def test_what_has_no_value_on_a_part_is_left_out() -> None:
    column = np.array(["one"] + ["rest"] * 59)
    assert set(by_value(TWO, ENTRIES, column)["one"]) == {"rows", "mean_absolute_error"}


def test_intervals_are_those_of_scipys_bootstrap() -> None:
    [found] = intervals({"mean_absolute_error": METRICS["mean_absolute_error"]}, ENTRIES, 1000, seed=0).values()
    error = np.abs(TRUTH - GUESS).ravel()
    expected = stats.bootstrap((error,), np.mean, n_resamples=5000, method="percentile", rng=1).confidence_interval
    np.testing.assert_allclose(found, expected, rtol=0.05)
    assert intervals(TWO, ENTRIES, 20, seed=3) == intervals(TWO, ENTRIES, 20, seed=3)


def test_many_numbers_are_parted_at_quartiles_and_of_many_words_the_frequent_stand_alone() -> None:
    values = np.r_[RNG.normal(size=200), np.nan]
    parts = slice_by_value(values)
    assert parts[0][0] == ""
    assert [int(where.sum()) for _, where in parts] == [1, 50, 50, 50, 50]
    assert len(slice_by_value(np.arange(MOST_NUMBERS))) == MOST_NUMBERS
    words = slice_by_value(np.array([f"w{i}" for i in range(MOST_VALUES + 5)] + ["w1"]))
    assert len(words) == MOST_VALUES + 1
    assert words[-1][0] == "others"
    assert sum(where.sum() for _, where in words) == MOST_VALUES + 6


def test_a_column_is_found_in_an_array_and_by_itself() -> None:
    numbers = np.array([[0, 1.5], [1, 2], [1, 3], [0, 4]])
    words = np.array(["f", "m", "m", "f"], object)
    rows = Rows(
        {"X": numbers, "sex": words}, np.zeros(4), columns={"X": ("is", "age")}, kept={"sex": RawColumn("word")}
    )
    assert columns_of(rows) == ["sex", "is", "age"]
    assert column_of(rows, "sex").tolist() == ["f", "m", "m", "f"]
    assert column_of(rows, "age").tolist() == [1.5, 2, 3, 4]
    with pytest.raises(DataError, match="need the name of a column of the rows"):
        column_of(rows, "aeg")


def test_evaluate_records_slices_and_intervals_and_refuses_other_columns() -> None:
    from sklearn.linear_model import LinearRegression

    x = np.stack([RNG.normal(size=60), WORDS == "a"], axis=1)
    rows = Rows({"X": x}, TRUTH[:, 0], columns={"X": ("size", "is_a")})
    data = Data(rows, None, rows)
    model = convert(LinearRegression(), data=data)
    record = evaluate(model, EvaluateConfig(by=("is_a",), bootstrap=50), data=data).facts.lineage[-1]
    assert list(record["slices"]) == ["is_a"]
    assert [part["rows"] for part in record["slices"]["is_a"].values()] == [(WORDS != "a").sum(), (WORDS == "a").sum()]
    low, high = record["intervals"]["mean_absolute_error"]
    assert low < high
    with pytest.raises((DataError, EvaluateError), match="need the name of a column of the rows"):
        check(model.facts, EvaluateConfig(by=("isa",)), data=data)
