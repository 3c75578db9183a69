"""Measures of drift agree with their formulas and with SciPy, and limits decide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2, entropy, ks_2samp

from ortpipe import Data, Rows
from ortpipe.app.drift import RejectedRowsError, drift_figures, drift_of, drift_table, in_words, raise_rejected
from ortpipe.app.drift.config import CheckConfig
from ortpipe.app.drift.profile import column_of, profile_of, read_values
from ortpipe.app.drift.two_samples import chance, psi

RNG = np.random.default_rng(0)
X, W = RNG.normal(size=120), RNG.choice(["a", "b", "c"], 120)


def data(**columns: Any) -> Data:
    columns = {"x": X, "w": W, "label": np.arange(120) % 2, **columns}
    label = columns.pop("label")
    return Data(Rows({name: array for name, array in columns.items() if array is not None}, label))


def drift(new: Data, **limits: Any) -> dict[str, Any]:
    return {"against": "models:/m/1", **drift_of(profile_of(data()), new, CheckConfig(**limits))}


def test_the_stability_index_is_the_sum_of_both_relative_entropies() -> None:
    old, new = np.array([40, 30, 0, 130]), np.array([5, 30, 9, 0])
    p, q = (old + 0.5) / (old + 0.5).sum(), (new + 0.5) / (new + 0.5).sum()
    assert psi(old, new) == pytest.approx(entropy(p, q) + entropy(q, p), rel=1e-12)
    assert psi(old, old) == 0


def test_equal_distributions_exceed_the_chance_as_rarely_as_it_says() -> None:
    old, new = RNG.multinomial(800, [0.1] * 10, 4000), RNG.multinomial(300, [0.1] * 10, 4000)
    limit = chance(old[0], new[0])
    beyond = np.mean([psi(a, b) > limit for a, b in zip(old, new, strict=True)])
    assert 0 < beyond < 0.003


def test_the_tests_are_those_of_kolmogorov_and_smirnov_and_of_pearson() -> None:
    new = data(x=X[:100] + 0.3, w=np.repeat(["a", "b", "c"], [50, 30, 20]), label=np.arange(100) % 2)
    columns = drift(new)["columns"]
    old_counts, new_counts = np.array([np.sum(word == W) for word in "abc"]), np.array([50, 30, 20])
    table = np.array([old_counts, new_counts])
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    p_values = {
        "x": ks_2samp(X, X[:100] + 0.3, method="asymp").pvalue,
        "w": chi2.sf(((table - expected) ** 2 / expected).sum(), 2),
        "(label)": 1.0,
    }
    rank = {name: place for place, name in enumerate(sorted(p_values, key=p_values.__getitem__), start=1)}
    for name, p in p_values.items():  # Benjamini and Hochberg
        adjusted = min([1.0, *(p_values[other] * 3 / rank[other] for other in rank if rank[other] >= rank[name])])
        assert columns[name]["p_value"] == pytest.approx(adjusted), (name, p)


def test_a_profile_of_128_values_gives_nearly_the_test_of_all() -> None:
    rows, new = RNG.normal(size=5000), RNG.normal(0.1, 1, 400)
    values = read_values(Rows({"x": rows}, np.zeros(5000, int)))["x"]
    kept = np.array(column_of(values).values)
    assert len(kept) == 128
    assert abs(ks_2samp(kept, new).statistic - ks_2samp(rows, new).statistic) < 1 / 128


def test_equal_rows_do_not_drift() -> None:
    same = drift(data())
    assert (same["reported"], same["rejected"]) == ([], [])
    assert in_words(same) == ["no drift against models:/m/1 in 3 columns"]
    assert in_words({}) == drift_table({}) == []
    assert drift_figures({}) == {}
    raise_rejected(same)


GAPS = np.where(np.arange(120) < 45, np.nan, X)


@pytest.mark.parametrize(
    ("new", "limits", "message"),
    [
        (data(w=None), {}, "column w is missing"),
        (data(z=X), {}, "column z is new: leave it out (data.source.exclude)"),
        (data(x=W), {}, "column x holds words, numbers in training"),
        (data(x=X + 9), {}, "x: 100.0% of the numbers are outside the range of the training rows; outside 0.5"),
        (data(w=np.where(W == "a", "d", "e")), {}, "w: 100.0% of the values are new; new_words 0.5"),
        (data(label=np.arange(120) % 5), {"new_words": 0.1}, "(label): 60.0% of the values are new; new_words 0.1"),
        (data(x=X + 0.9), {"psi": 0.2}, "x drifts: stability index"),
        (data(x=X + 0.9), {"p_value": 0.01}, "x differs (KS p = "),
    ],
)
def test_rows_beyond_a_limit_are_rejected(new: Data, limits: dict[str, Any], message: str) -> None:
    with pytest.raises(RejectedRowsError, match=r"New rows must be like the rows that trained models:/m/1\.") as error:
        raise_rejected(drift(new, **limits))
    assert message in str(error.value.got)
    assert error.value.code == 4


def test_missing_values_count_as_a_bin_and_have_a_limit() -> None:
    new = data()
    new.train.inputs["x"] = GAPS  # type: ignore[attr-defined]  # as the readers of tables keep them
    found = drift(new)
    assert found["rejected"] == ["x: 37.5% of the values are missing, 0.0% in training; missing 0.2"]
    assert found["columns"]["x"]["bins"][-1] == "(missing)"
    assert found["columns"]["x"]["new"][-1] == pytest.approx(0.375)
    assert drift(new, missing=None)["reported"][0] == "x: 37.5% of the values are missing, 0.0% in training"
    assert drift(new, exclude=["[x]"])["rejected"] == []


def test_drift_is_reported_without_a_limit_and_by_chance_not_at_all() -> None:
    moved = drift(data(x=X + 0.9))
    assert moved["rejected"] == []
    assert moved["reported"][-1].startswith("x drifts: stability index ")
    few = data(x=RNG.normal(size=12), w=W[:12], label=np.arange(12) % 2)
    assert drift(few, psi=0.1)["rejected"] == []  # 12 rows differ as much by chance
    assert [row[0] for row in drift_table(moved)][:2] == ["column", "x"]
