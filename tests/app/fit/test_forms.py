"""A network gets the outputs that its loss needs, and its predictions have telling names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ortpipe
from ortpipe.errors import EvaluateError, TrainError

SETTINGS = {"model": "mlp", "hidden": (4,), "epochs": 2, "recorder": "none", "figures": False}


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=80)
    weeks, seen = (10 * rng.exponential(np.exp(-x))).round(1) + 0.1, rng.uniform(2, 30, 80).round(1)
    died = (weeks <= seen) * 1
    return pd.DataFrame({"x": x, "weeks": np.minimum(weeks, seen), "died": died, "price": 100 + 10 * x})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("label", "settings", "columns"),
    [
        ("price", {"loss": "quantile", "quantiles": [0.1, 0.9]}, ["prediction_q0.1", "prediction_q0.9"]),
        (["weeks", "died"], {"loss": "cox"}, ["prediction"]),
        (
            ["weeks", "died"],
            {"loss": "discrete_hazard", "cuts": [5, 12.5]},
            ["prediction_survival_5", "prediction_survival_12.5"],
        ),
    ],
)
def test_one_call_trains_all_outputs_of_a_loss(label: object, settings: dict[str, object], columns: list[str]) -> None:
    frame = table()[["x", *([label] if isinstance(label, str) else label)]]
    run = ortpipe.fit(frame, label, **SETTINGS, **settings)
    predicted = run.predict(frame[["x"]])
    assert list(predicted.columns) == columns
    if "quantiles" in settings:
        assert predicted["prediction_q0.1"].between(60, 140).all()  # in the label's units
        assert (predicted["prediction_q0.1"] <= predicted["prediction_q0.9"]).all()
    if "cuts" in settings:
        assert (predicted.iloc[:, 0] >= predicted.iloc[:, 1]).all()
        assert predicted.iloc[:, 0].between(0, 1).all()


def test_cox_is_neither_split_nor_accumulated_and_metrics_are_checked_before_training() -> None:
    frame = table()[["x", "weeks", "died"]]
    with pytest.raises(TrainError, match=r"cox reads a whole batch(.|\n)*accumulate=2"):
        ortpipe.fit(frame, ["weeks", "died"], **SETTINGS, loss="cox", accumulate=2)
    with pytest.raises(EvaluateError, match=r"r2 for a risk model(.|\n)*concordance"):
        ortpipe.fit(frame, ["weeks", "died"], **SETTINGS, loss="cox", metrics=["r2"])
